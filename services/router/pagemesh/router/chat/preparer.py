"""From a conversation in any dialect to a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pagemesh.router.call import Call
from pagemesh.router.chat.answer import ChatAnswer
from pagemesh.router.chat.choice_reader import ChoiceReader
from pagemesh.router.chat.writer import ChatWriter
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.generation.request import GenerationRequest
from pagemesh.router.models import Models
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.job import Job
from pagemesh.router.openai.sampling import make_choices
from pagemesh.router.parsers.factory import make_parser
from pagemesh.router.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """What a writer may need to know."""

    call: Call

    fields: ChatRequest

    model: ServedModel
    """The one that was asked for."""

    prompt_token_ids: Sequence[int]
    """Of the rendered conversation."""


NewWriter = Callable[[ChatPlan], ChatWriter]
"""Makes the writer of one answer."""


class ChatPreparer:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def prepare(self, fields: ChatRequest, call: Call, new_writer: NewWriter) -> Job:
        """A job for a checked request; raises PagemeshErrors that name fields of chat completions."""
        service = self._models.find(fields.model)
        model = service.model
        messages = [message.for_template() for message in fields.messages]
        max_model_len = service.workers.require_max_model_len()
        prompt = await model.encode_chat(messages, "messages", max_model_len)
        limit_field, asked = fields.token_limit
        max_tokens = resolve_max_tokens(
            len(prompt),
            max_model_len,
            asked,
            model.defaults.max_tokens,
            prompt_field="messages",
            limit_field=limit_field,
        )
        request = GenerationRequest(
            call=call,
            choices=make_choices([prompt], [max_tokens], fields, model),
            num_prompts=1,
            stop=fields.stop_strings,
            priority=fields.priority or 0,
            is_open_ended=asked is None and model.defaults.max_tokens is None,
            cache_salt=fields.cache_salt or "",
        )
        writer = new_writer(ChatPlan(call, fields, model, prompt))
        new_parser = partial(make_parser, None, None)
        answer = ChatAnswer(writer, lambda: ChoiceReader(new_parser()), fields.num_answers)
        return Job(service.generator, request, answer, bool(fields.stream), fields.num_answers)
