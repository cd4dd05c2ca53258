"""From a conversation in any dialect to a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.chat.answer import ChatAnswer
from pagemesh.router.chat.choice_reader import ChoiceReader
from pagemesh.router.chat.rules import ChatRules
from pagemesh.router.chat.writer import ChatWriter
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.models import Models
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.chat_tools import ToolUse
from pagemesh.router.openai.generation_request import make_request
from pagemesh.router.openai.job import Job
from pagemesh.router.openai.truncation import Truncation
from pagemesh.router.parsers.factory import make_parser, parser_markers
from pagemesh.router.parsers.forced import forced_grammar
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.structured.outputs import StructuredOutputs

_PROMPT_END_CHARS = 256
"""As much of a prompt as parsers need to see whether thoughts have begun in it."""


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
        service = self._models.find(fields.model)
        model = service.model
        use = fields.tool_use
        reading = _Reading.of(model.chat, use, fields)
        max_model_len = service.workers.require_max_model_len()
        prompt = render(model, fields, use)
        limit_field, asked = fields.token_limit
        truncation = Truncation.of(fields, max_model_len, asked)
        prompt_ids = await model.encode_rendered(
            prompt,
            "messages",
            max_model_len,
            add_special_tokens=bool(fields.add_special_tokens),
            truncation=truncation,
        )
        max_tokens = resolve_max_tokens(
            len(prompt_ids),
            max_model_len,
            asked,
            model.defaults.max_tokens,
            prompt_field="messages",
            limit_field=limit_field,
        )
        request = make_request(
            call,
            model,
            fields,
            [prompt_ids],
            [max_tokens],
            markers=parser_markers(reading.tool_parser, reading.reasoning_parser),
            forced=reading.forced(model, use, fields, prompt),
        )
        writer = new_writer(ChatPlan(call, fields, model, prompt, prompt_ids))
        num_answers = fields.num_answers
        readers = [reading.reader(use, fields, prompt) for _ in range(num_answers)]
        answer = ChatAnswer(writer, readers)
        return Job(service.generator, request, answer, bool(fields.stream), num_answers)


def render(model: ServedModel, fields: ChatRequest, use: ToolUse) -> str:
    """The prompt that a conversation becomes."""
    template = model.chat.template_for(fields.chat_template, model.tokenizer)
    return template.render(fields.template_messages(), fields.render_options(use))


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the answer to one request is taken apart."""

    tool_parser: str | None
    reasoning_parser: str | None

    @classmethod
    def of(cls, rules: ChatRules, use: ToolUse, fields: ChatRequest) -> _Reading:
        """Raises PagemeshErrors for tools that cannot be offered."""
        is_constrained = fields.output_constraint is not None
        tool_parser = None
        if use.mode != "none":
            tool_parser = rules.require_tool_parser(is_auto=use.mode == "auto")
            if is_constrained and use.mode == "required":
                raise InvalidRequestError(
                    "an answer cannot both call a tool and have a form that response_format or"
                    " structured_outputs gives it",
                    param="tool_choice",
                )
        if is_constrained:
            # Such an answer has its form from the first token on: it is content, whatever it looks like.
            return cls(None, None)
        return cls(tool_parser, rules.reasoning_parser)

    def forced(
        self, model: ServedModel, use: ToolUse, fields: ChatRequest, prompt: str
    ) -> StructuredOutputs | None:
        """What an answer must look like that has to call a tool; None for any other."""
        if use.mode != "required" or self.tool_parser is None:
            return None
        grammar = forced_grammar(
            self.tool_parser,
            self.reasoning_parser,
            use.callable,
            parallel=not use.is_named and fields.parallel_tool_calls is not False,
            token_id=model.tokenizer.token_id,
            prompt=prompt[-_PROMPT_END_CHARS:],
        )
        return StructuredOutputs.of(grammar=grammar)

    def reader(self, use: ToolUse, fields: ChatRequest, prompt: str) -> ChoiceReader:
        """For one choice."""
        parser = make_parser(
            self.tool_parser, self.reasoning_parser, prompt=prompt[-_PROMPT_END_CHARS:]
        )
        return ChoiceReader(
            parser,
            shows_reasoning=fields.include_reasoning is not False,
            keeps_one_call=fields.parallel_tool_calls is False,
            is_named=use.is_named,
        )
