"""What was found in the cells, in benchmarks/results/chaos.json, and docs/chaos.md, which is made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from tests.chaos.faults import FAULTS
from tests.chaos.matrix import ROWS, SENSELESS, Cell, Row
from tests.chaos.phases import PHASES
from tests.chaos.trial import Finding

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "benchmarks/results/chaos.json"
DOCUMENT: Final = ROOT / "docs/chaos.md"
MARK: Final = "<!-- From here on, `make chaos` writes. -->"


class Findings:
    """By cell, the latest."""

    def __init__(self, found: dict[str, dict[str, Any]]) -> None:
        self._found = found

    @classmethod
    def load(cls) -> Self:
        """Those of earlier runs."""
        return cls(json.loads(FILE.read_text(encoding="utf-8"))["cells"] if FILE.exists() else {})

    def has(self, cell: Cell) -> bool:
        return cell.id in self._found

    def add(self, cell: Cell, finding: Finding) -> None:
        numbers = {
            key: round(value, 3) for key, value in asdict(finding).items() if key[-2:] == "_s"
        }
        self._found[cell.id] = asdict(finding) | numbers

    def save(self) -> None:
        """Write the figures, and the tables behind the words of docs/chaos.md."""
        content = json.dumps({"cells": dict(sorted(self._found.items()))}, indent=1)
        FILE.write_text(content + "\n", encoding="utf-8")
        words = DOCUMENT.read_text(encoding="utf-8").partition(MARK)[0]
        DOCUMENT.write_text(words + MARK + "\n" + "\n".join(tables(self._found)), encoding="utf-8")


def tables(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: a table for each row of the matrix, with a line for each fault."""
    known = [row.name for row in ROWS]
    wrong = [f"{name}: {'; '.join(each['wrong'])}" for name, each in found.items() if each["wrong"]]
    yield f"\n{len(found)} cells played, {len(wrong)} of them with something wrong.\n"
    yield from (f"- {sentence}" for sentence in wrong)
    for row in sorted(ROWS, key=lambda row: known.index(row.name)):
        yield f"\n## {row.name[0].upper()}{row.name[1:]}\n"
        yield f"| fault | {' | '.join(PHASES)} |"
        yield "|---" * (len(PHASES) + 1) + "|"
        yield from (_line(row, fault, found) for fault in FAULTS)
    yield ""


def _line(row: Row, fault: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    if reason := SENSELESS.get((row.name, fault)):
        return f"| {fault} | n/a: {reason} |" + " |" * (len(PHASES) - 1)
    fields = [_field(found.get(Cell(row.name, fault, phase).id)) for phase in PHASES]
    return f"| {fault} | {' | '.join(fields)} |"


def _field(finding: Mapping[str, Any] | None) -> str:
    if finding is None:
        return "not played"
    verdict = "**WRONG** " if finding["wrong"] else ""
    return f"{verdict}{finding['seen']}, {finding['pause_s']:.1f}, {finding['recovery_s']:.1f}"
