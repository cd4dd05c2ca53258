"""Texts with markers, as grammars have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from pagemesh.router.parsers.tool_format import TokenId

ANYTHING: Final = r"/(.|\n)*/"
"""Any text."""


class GrammarText:
    """Writes texts for a model. A marker that is a token of its own is only that, and never its text."""

    def __init__(self, markers: Iterable[str], token_id: TokenId) -> None:
        ids = {marker: token_id(marker) for marker in markers}
        self._tokens = {marker: f"<[{id_}]>" for marker, id_ in ids.items() if id_ is not None}
        self._split = re.compile("(" + "|".join(re.escape(marker) for marker in self._tokens) + ")")

    def of(self, text: str) -> str:
        """A text, "" when it has none."""
        parts = self._split.split(text) if self._tokens else [text]
        return joined(*(self._tokens.get(part) or literal(part) for part in parts if part))

    def has_token(self, marker: str) -> bool:
        """Whether a marker is a token of its own."""
        return marker in self._tokens


def joined(*parts: str) -> str:
    """Parts of a rule, of which some may be none."""
    return " ".join(part for part in parts if part)


def literal(text: str) -> str:
    """A text in which nothing is a token of its own."""
    return json.dumps(text, ensure_ascii=False)
