"""How the answer to one request is taken apart, and what form it must have for that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Self

from pagemesh.errors import UnsupportedError
from pagemesh.router.chat.choice_reader import ChoiceReader
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.chat_tools import ToolUse
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.call_or_form import CallOrForm
from pagemesh.router.parsers.factory import make_parser, parser_markers
from pagemesh.router.parsers.forced import CallSyntax, forced_grammar
from pagemesh.router.parsers.formats import thought_marks
from pagemesh.router.parsers.strict_calls import strict_grammar
from pagemesh.router.parsers.structured_thoughts import behind_thoughts
from pagemesh.router.parsers.thought_count import make_thought_counter
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.structured.outputs import StructuredKind, StructuredOutputs
from pagemesh.tokenizer.thought_span import ThoughtMarks
from pagemesh.tokenizer.tokenizer import token_text


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """The same for all choices of a request."""

    fields: ChatRequest

    model: ServedModel

    tool_parser: str | None
    reasoning_parser: str | None

    begun: bool | None
    """Whether the prompt ends in thoughts, or behind them; None for neither."""

    written: str
    """What the prompt has of the answer, which goes on with it."""

    use: ToolUse
    """Which tools may be called."""

    form: StructuredOutputs | None
    """What the answer must look like; None for any."""

    is_form_of_tools: bool
    """Whether the form is that of calls alone."""

    call_heads: re.Pattern[str] | None
    """What calls begin with in an answer that is only calls, or has a form of its own; None for all others."""

    @classmethod
    def of(
        cls,
        model: ServedModel,
        fields: ChatRequest,
        use: ToolUse,
        form: StructuredOutputs | None,
        begun: bool | None,
        written: str = "",
    ) -> Self:
        """`form` is what the request wants the answer to look like; `begun` and `written` as below.

        Raises PagemeshErrors for tools that cannot be offered, or not with such a form.
        """
        rules = model.chat
        reasoning = rules.reasoning_parser
        thinks = fields.wants_thoughts(rules.template_defaults)
        start = AnswerStart(reasoning, model.tokenizer.added_token_id, begun, thinks)
        parallel = not use.is_named and fields.parallel_tool_calls is not False
        tools = heads = None
        if use.mode != "none":
            tools = rules.require_tool_parser(is_auto=use.mode == "auto")
        elif use.shown:
            # Whoever was told of tools may call one all the same.
            tools = rules.tool_parser
        if use.mode == "required":
            # A form is that of answers, of which there is none.
            form = None
        is_form_of_tools = form is None and use.is_constrained
        if is_form_of_tools and tools is not None:
            write_grammar = forced_grammar if use.mode == "required" else strict_grammar
            grammar = write_grammar(tools, start, use.callable, parallel=parallel)
            form = StructuredOutputs.of(grammar=grammar)
        elif form is not None and use.mode == "auto" and tools and not _is_begun(begun, written):
            either = CallOrForm(CallSyntax.of(tools, start.token_id), use.callable, form)
            form = StructuredOutputs.of(grammar=either.grammar(start, parallel=parallel))
            heads = either.call_heads()
        elif form is not None:
            # An answer in that form calls nothing, even when it looks like it.
            tools = None
            form, has_thoughts = _behind_thoughts(form, start)
            reasoning = reasoning if has_thoughts else None
        return cls(
            fields, model, tools, reasoning, begun, written, use, form, is_form_of_tools, heads
        )

    @property
    def markers(self) -> frozenset[str]:
        """Special tokens that the answer's text must show."""
        return parser_markers(self.tool_parser, self.reasoning_parser)

    @property
    def thought_marks(self) -> ThoughtMarks | None:
        """Those around the thoughts; None where nobody looks for thoughts."""
        return thought_marks(self.tool_parser, self.reasoning_parser, begun=self.begun)

    def new_reader(self) -> ChoiceReader:
        """For one choice."""
        parser = make_parser(
            self.tool_parser,
            self.reasoning_parser,
            begun=self.begun,
            written=self.written,
            call_heads=self.call_heads,
        )
        return ChoiceReader(
            parser,
            shows_reasoning=self.fields.include_reasoning is not False,
            keeps_one_call=self.fields.parallel_tool_calls is False,
            drops_calls=self.use.mode == "none",
            is_named=self.use.is_named,
            thoughts=make_thought_counter(
                self.tool_parser,
                self.reasoning_parser,
                partial(token_text, self.model.tokenizer),
                begun=self.begun,
            ),
        )


def _is_begun(begun: bool | None, written: str) -> bool:
    """Whether the prompt has the beginning of an answer behind its thoughts, which a call would have been in."""
    return begun is not True and bool(written.strip())


def _behind_thoughts(form: StructuredOutputs, start: AnswerStart) -> tuple[StructuredOutputs, bool]:
    """The form of an answer that calls nothing, and whether thoughts may stand before it."""
    try:
        return behind_thoughts(form, start), True
    except UnsupportedError:
        if form.kind is not StructuredKind.GRAMMAR:
            raise
        # It then holds from the first token on.
        return form, False
