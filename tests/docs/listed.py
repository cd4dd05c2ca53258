"""The list of blocks that are run elsewhere, only when there is time, or not at all."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.docs.blocks import Block
from tests.hygiene.tree import ROOT

_SETTINGS: Final = re.compile(r"^(?:[A-Z0-9_]+=\S* +)+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; either `command`, or `document` and `line`."""

    reason: str
    by: str = ""
    """Who runs the same: "make TARGET", or the path of a test."""
    instead: str = ""
    """Likewise, what is tested in its place where nobody runs it."""
    command: str = ""
    document: str = ""
    line: str = ""

    def covers(self, block: Block) -> bool:
        """Whether it speaks of the block."""
        if not block.runs:
            return False
        if self.command:
            # Behind settings for this command alone.
            lines = [_SETTINGS.sub("", line.strip()) for line in block.text.splitlines()]
            return any(f"{line} ".startswith(f"{self.command} ") for line in lines)
        return (block.document, block.first_line) == (self.document, self.line)


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Of `elsewhere` or `slow`."""
    text = (ROOT / "tests/docs/elsewhere.toml").read_text(encoding="utf-8")
    return tuple(Entry(**fields) for fields in tomllib.loads(text).get(kind, []))


def entry_of(kind: str, block: Block) -> Entry | None:
    """The one that speaks for the block: of the block alone, or of the longest command."""
    covering = [entry for entry in entries(kind) if entry.covers(block)]
    return max(covering, key=lambda entry: (not entry.command, len(entry.command)), default=None)


def is_elsewhere(block: Block) -> bool:
    """Whether it is run somewhere else, or cannot be."""
    return entry_of("elsewhere", block) is not None


def is_slow(block: Block) -> bool:
    """Whether it takes too long for every run of the tests."""
    return entry_of("slow", block) is not None
