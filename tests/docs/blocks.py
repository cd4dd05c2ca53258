"""The code blocks of the documents, with what stands around each: a program, its output, how it is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.hygiene.tree import ROOT

SHELL: Final = "sh"
PYTHON: Final = "python"
OUTPUT: Final = "text"
DATA: Final = frozenset({"json", "toml", "yaml"})
LANGUAGES: Final = frozenset({SHELL, PYTHON, OUTPUT, *DATA})

OPTIONS: Final = {"keep", "shape", "unordered", "exits"}
"""What `<!-- docs: … -->` in front of a block may say: see CONTRIBUTING.md."""

_READER: Final = MarkdownIt().disable("inline")
"""What stands within lines says nothing about blocks, and takes two thirds of the time."""

_COMMENT: Final = re.compile(r"<!-- docs: (.+?) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    document: str
    """The file, relative to the repository."""
    line: int
    language: str
    text: str
    options: dict[str, str] = field(default_factory=dict)
    output: Block | None = None
    """The block right below that shows what this one prints."""

    @property
    def first_line(self) -> str:
        """The first line that is no comment; names the block in lists."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return next((line for line in lines if not line.startswith("#")), "").strip()

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.document}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether it is a program or commands."""
        return self.language in (SHELL, PYTHON)


def documents() -> list[Path]:
    """All documents whose blocks count. Decisions tell of what was chosen, and show no commands to type."""
    names = ["README.md", "CONTRIBUTING.md", "gateway/README.md", "models/demo/README.md"]
    found = [ROOT / name for name in names]
    found += sorted((ROOT / "services").glob("*/README.md"))
    found += sorted((ROOT / "benchmarks").glob("*.md")) + sorted((ROOT / "charts").glob("*/*.md"))
    found += sorted((ROOT / "docs").rglob("*.md"))
    return found


@cache
def all_blocks() -> tuple[Block, ...]:
    """Of all documents, in order."""
    return tuple(
        block
        for path in documents()
        for block in blocks_in(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    )


def blocks_in(text: str, document: str) -> list[Block]:
    """The blocks of one document."""
    tokens = _READER.parse(text)
    return list(_pairs(_fences(tokens, document)))


def indented_code(text: str) -> list[int]:
    """Lines at which code begins that is only indented, so that nobody knows its language."""
    tokens = _READER.parse(text)
    return [token.map[0] + 1 for token in tokens if token.type == "code_block" and token.map]


def _fences(tokens: Sequence[Token], document: str) -> Iterator[tuple[Block, int]]:
    """Each fenced block, with the number of other things between it and the one before."""
    options: dict[str, str] = {}
    distance = 0
    for token in tokens:
        if token.type == "html_block" and (match := _COMMENT.search(token.content)):
            options = dict(_option(word, document) for word in match[1].split())
        elif token.type == "fence":
            line = token.map[0] + 1 if token.map else 0
            yield Block(document, line, token.info.strip(), token.content, options), distance
            options, distance = {}, 0
        elif token.type != "inline":
            distance += 1


def _option(word: str, document: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    assert name in OPTIONS, f"{document}: <!-- docs: {word} --> says what nobody knows"
    return name, value


def _pairs(fences: Iterator[tuple[Block, int]]) -> Iterator[Block]:
    """Join each block of output to what prints it."""
    pending: Block | None = None
    for block, distance in fences:
        is_output = block.language == OUTPUT and distance == 0
        if is_output and pending is not None and pending.runs:
            yield Block(
                pending.document,
                pending.line,
                pending.language,
                pending.text,
                pending.options,
                block,
            )
            pending = None
            continue
        if pending is not None:
            yield pending
        pending = block
    if pending is not None:
        yield pending
