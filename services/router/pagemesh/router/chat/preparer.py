"""From a conversation in any dialect to a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagemesh.router.call import Call
from pagemesh.router.chat.answer import ChatAnswer
from pagemesh.router.chat.conversation import open_conversation
from pagemesh.router.chat.writer import ChatWriter
from pagemesh.router.generation.limits import resolve_max_tokens, within_cap
from pagemesh.router.models import Models
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.generation_request import make_request
from pagemesh.router.openai.job import Job
from pagemesh.router.openai.truncation import Truncation
from pagemesh.router.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """What a writer may need to know."""

    call: Call

    fields: ChatRequest

    model: ServedModel
    """The one that was asked for."""

    prompt: str
    """The rendered conversation."""

    prompt_token_ids: Sequence[int]
    """Of it."""


NewWriter = Callable[[ChatPlan], ChatWriter]
"""Makes the writer of one answer."""


class ChatPreparer:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def prepare(self, fields: ChatRequest, call: Call, new_writer: NewWriter) -> Job:
        """A job for a checked request; raises PagemeshErrors that name fields of chat completions."""
        call = fields.within(call)
        service = self._models.find(fields.model, call)
        model = service.model
        max_model_len = service.workers.require_max_model_len()
        limit_field, asked = fields.token_limit
        most = model.defaults.most_tokens
        prompt, prompt_ids, reading = await open_conversation(
            model,
            fields,
            fields.output_constraint,
            max_model_len,
            truncation=Truncation.of(fields, max_model_len, within_cap(asked, limit_field, most)),
        )
        max_tokens = resolve_max_tokens(
            len(prompt_ids),
            max_model_len,
            asked,
            model.defaults.max_tokens,
            most,
            prompt_field="messages",
            limit_field=limit_field,
        )
        request = make_request(
            call,
            model,
            fields,
            [prompt_ids],
            [max_tokens],
            is_open_ended=asked is None and model.defaults.max_tokens is None,
            markers=reading.markers,
            forced=reading.form,
            form_field="tools" if reading.is_form_of_tools else None,
            thought_marks=reading.thought_marks,
        )
        writer = new_writer(ChatPlan(call, fields, model, prompt, prompt_ids))
        num_answers = fields.num_answers
        readers = [reading.new_reader() for _ in range(num_answers)]
        answer = ChatAnswer(writer, readers)
        return Job(service.generator, request, answer, bool(fields.stream), num_answers)
