"""The table of perplexities is that of the last run, and in it 8 and 4 bits lose no more than they may."""

from __future__ import annotations

import json
from typing import Final

from tests.hygiene.tree import ROOT

HEAD: Final = "| weights and KV | perplexity |\n|---|---|\n"
DENSE: Final = "bfloat16"
MOST: Final = {
    "--quantization fp8": 1.01,
    "--quantization int8": 1.01,
    "a GGUF file in Q8_0": 1.01,
    "--quantization int4": 1.03,
}
"""Times the perplexity in bfloat16."""


def measured() -> dict[str, float]:
    """By the names of the ways."""
    text = (ROOT / "benchmarks/results/perplexity.json").read_text(encoding="utf-8")
    return {each["name"]: each["value"] for each in json.loads(text)["figures"]}


def test_the_table_has_what_was_measured() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    rows = text.partition(HEAD)[2].partition("\n\n")[0].splitlines()
    told = [row.strip("| ").rpartition(" | ")[2] for row in rows]
    assert told == [f"{value:.3f}" for value in measured().values()]


def test_few_bits_lose_little() -> None:
    found = measured()
    ratios = {name: found[name] / found[DENSE] for name in MOST if name in found}
    assert len(ratios) >= 3
    assert {name: ratio for name, ratio in ratios.items() if ratio > MOST[name]} == {}
