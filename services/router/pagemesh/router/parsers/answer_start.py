"""What stands in a grammar before the answer itself: the reasoning that comes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pagemesh.router.parsers.formats import find_thinking_format
from pagemesh.router.parsers.grammar_text import ANYTHING, GrammarText, joined, literal
from pagemesh.router.parsers.thinking import CLOSE, OPEN
from pagemesh.router.parsers.tool_format import TokenId

_BLANKS: Final = r"/[ \n]{1,4}/?"
"""What models write behind their thoughts."""


class Thoughts(NamedTuple):
    """Reasoning in a grammar."""

    symbol: str
    """For the rule that begins it all; "" for no thoughts."""

    rules: list[str]


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """Where an answer begins, and what is known of the reasoning in front of it."""

    reasoning_parser: str | None
    """By its name as in `make_parser`, which reads what the grammar allows; None for no reasoning."""

    token_id: TokenId

    begun: bool | None = None
    """Whether the prompt ends in reasoning, or behind it; None for neither."""

    thinks: bool | None = None
    """What the request says of it."""

    def thoughts(self, call_marker: str | None = None) -> Thoughts:
        """The reasoning that comes first.

        Where the prompt leaves it open, the model may think as the request wishes. Where there is no wish
        either, only models with tokens for it may: others do not think unless they are told to, and a small
        one that must not begin as it likes would begin with endless thoughts. `call_marker` begins tool
        calls. What a parser takes for the end of the reasoning stands nowhere in it.
        """
        if self.reasoning_parser is None:
            return Thoughts("", [])
        thinking = find_thinking_format(self.reasoning_parser)
        begins = thinking.begins_thinking(self.begun)
        if begins is False:
            return Thoughts("", [])
        text = GrammarText(thinking.markers, self.token_id)
        if begins is None and not (text.has_token(OPEN) if self.thinks is None else self.thinks):
            return Thoughts("", [])
        opening = text.of(OPEN)
        if text.has_token(CLOSE):
            # Such tokens are not part of any text, nor are those of calls.
            opening = f"({opening})?" if begins else opening
            rules = [joined("thoughts:", opening, ANYTHING, text.of(CLOSE), _BLANKS)]
        else:
            anything = ANYTHING
            if call_marker is not None and thinking.has_calls:
                anything += f" & ~({ANYTHING} {literal(call_marker)} {ANYTHING})"
            # What the prompt has opened may be opened once more, as any text.
            rules = [
                joined("thoughts:", "" if begins else opening, "thought", _BLANKS),
                f"thought[suffix={literal(CLOSE)}]: ANYTHING",
                f"ANYTHING: {anything}",
            ]
        return Thoughts("thoughts" if begins else "thoughts?", rules)
