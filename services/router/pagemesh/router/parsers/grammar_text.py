"""Texts with markers, and reasoning, as grammars have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from pagemesh.router.parsers.formats import find_thinking_format
from pagemesh.router.parsers.thinking import CLOSE, OPEN
from pagemesh.router.parsers.tool_format import TokenId

_ANYTHING: Final = r"/(.|\n)*/"
_BLANKS: Final = r"/[ \n]{1,4}/?"
"""What models write behind their thoughts."""


class GrammarText:
    """Writes texts for a model. A marker that is a token of its own is only that, and never its text."""

    def __init__(self, markers: Iterable[str], token_id: TokenId) -> None:
        ids = {marker: token_id(marker) for marker in markers}
        self._tokens = {marker: f"<[{id_}]>" for marker, id_ in ids.items() if id_ is not None}
        self._split = re.compile("(" + "|".join(re.escape(marker) for marker in self._tokens) + ")")

    def of(self, text: str) -> str:
        """A text, "" when it has none."""
        parts = self._split.split(text) if self._tokens else [text]
        return joined(*(self._tokens.get(part) or _literal(part) for part in parts if part))

    def has_token(self, marker: str) -> bool:
        """Whether a marker is a token of its own."""
        return marker in self._tokens


class Thoughts(NamedTuple):
    """What stands in a grammar before the answer itself."""

    symbol: str
    """For the rule that begins it all; "" for no thoughts."""

    rules: list[str]


def thoughts_before(
    reasoning_parser: str | None,
    prompt: str,
    token_id: TokenId,
    *,
    thinks: bool | None = None,
    call_marker: str | None = None,
) -> Thoughts:
    """The reasoning that comes first, by the name of its parser and the end of the rendered prompt.

    Where the prompt leaves it open, the model may think as `thinks` says, the request's wish. Where there
    is none either, only models with tokens for it may: others do not think unless they are told to, and a
    small one that must not begin as it likes would begin with endless thoughts. `call_marker` begins tool
    calls. What a parser takes for the end of the reasoning stands nowhere in it.
    """
    if reasoning_parser is None:
        return Thoughts("", [])
    thinking = find_thinking_format(reasoning_parser)
    begins = thinking.begins_thinking(prompt)
    if begins is False:
        return Thoughts("", [])
    text = GrammarText(thinking.markers, token_id)
    if begins is None and not (text.has_token(OPEN) if thinks is None else thinks):
        return Thoughts("", [])
    opening = text.of(OPEN)
    if text.has_token(CLOSE):
        # Such tokens are not part of any text, nor are those of calls.
        opening = f"({opening})?" if begins else opening
        rules = [joined("thoughts:", opening, _ANYTHING, text.of(CLOSE), _BLANKS)]
    else:
        anything = _ANYTHING
        if call_marker is not None and thinking.has_calls:
            anything += f" & ~({_ANYTHING} {_literal(call_marker)} {_ANYTHING})"
        # What the prompt has opened may be opened once more, as any text.
        rules = [
            joined("thoughts:", "" if begins else opening, "thought", _BLANKS),
            f"thought[suffix={_literal(CLOSE)}]: ANYTHING",
            f"ANYTHING: {anything}",
        ]
    return Thoughts("thoughts" if begins else "thoughts?", rules)


def joined(*parts: str) -> str:
    """Parts of a rule, of which some may be none."""
    return " ".join(part for part in parts if part)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
