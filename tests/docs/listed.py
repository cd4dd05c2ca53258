"""The list of blocks that are run elsewhere, or only when there is time."""

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
    """Of what is run elsewhere: "make TARGET", or the path of a test."""
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


def is_elsewhere(block: Block) -> bool:
    """Whether it is run somewhere else."""
    return any(entry.covers(block) for entry in entries("elsewhere"))


def is_slow(block: Block) -> bool:
    """Whether it takes too long for every run of the tests."""
    return any(entry.covers(block) for entry in entries("slow"))
