"""The table of perplexities is that of the last run, and in it few bits lose no more than they may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.hygiene.tree import ROOT

HEAD: Final = "| weights and KV | perplexity |\n|---|---|\n"
AIMED: Final = {
    "a GGUF file in Q8_0",
    *(f"--quantization {way}" for way in ("fp8", "int8", "int4")),
    *(f"--kv-cache-dtype {dtype}" for dtype in ("fp8", "int8")),
}


def figures(path: Path) -> dict[str, dict[str, Any]]:
    """By the names of the ways."""
    found = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return {each["name"]: each for each in found}


def assert_little_is_lost(found: dict[str, dict[str, Any]]) -> None:
    aims = {name: each["aim"] for name, each in found.items() if each["aim"] is not None}
    assert aims.keys() == AIMED
    assert {
        name: found[name]["value"] for name, aim in aims.items() if found[name]["value"] >= aim
    } == {}


def test_the_table_has_what_was_measured() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    rows = text.partition(HEAD)[2].partition("\n\n")[0].splitlines()
    told = [row.strip("| ").rpartition(" | ")[2] for row in rows]
    measured = figures(ROOT / "benchmarks/results/perplexity.json")
    assert told == [f"{each['value']:.3f}" for each in measured.values()]


def test_few_bits_lose_little() -> None:
    assert_little_is_lost(figures(ROOT / "benchmarks/results/perplexity.json"))
