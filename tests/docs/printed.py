"""Compares what was printed with what a document says is printed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_ANYTHING: Final = "…"


def differs(printed: str, said: str, *, in_shape: bool, in_order: bool = True) -> str | None:
    """How they differ; None when what was printed is what the document says.

    "…" stands for anything within a line, and for any lines where it is alone in one. `in_shape` compares
    neither numbers nor the width of columns. Without `in_order` the same lines may come in another one.
    """
    lines, patterns = _lines(printed, in_shape), _lines(said, in_shape)
    if not in_order:
        lines, patterns = _sorted_like(lines, patterns), sorted(patterns)
    pattern = "".join(_pattern(line) for line in patterns)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)):
        return None
    return f"printed:\n{printed}\nbut the document says:\n{said}"


def _lines(text: str, in_shape: bool) -> list[str]:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    if not in_shape:
        return lines
    return [" ".join(_NUMBER.sub("0", line).split()) for line in lines]


def _sorted_like(lines: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The lines in the order of the sorted patterns that they fit; what fits none is behind them."""
    left = list(lines)
    found = []
    for pattern in sorted(patterns):
        line = next((line for line in left if re.fullmatch(_pattern(pattern), f"{line}\n")), None)
        if line is not None:
            left.remove(line)
            found.append(line)
    return found + left


def _pattern(line: str) -> str:
    if line.strip() == _ANYTHING:
        return "(?:.*\n)*?"
    return ".*".join(re.escape(part) for part in line.split(_ANYTHING)) + "\n"
