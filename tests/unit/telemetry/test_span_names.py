"""What spans say is declared, documented, and called as OpenTelemetry calls it where that has a name."""

from __future__ import annotations

import re
from pathlib import Path

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

from pagemesh.telemetry import span_names

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/tracing.md"
DECLARED = {
    value
    for name, value in vars(span_names).items()
    if name.isupper() and isinstance(value, str) and name != "CANCELLED"
}
OF_VLLM = re.compile(r"gen_ai\.latency\.\w+")


def test_the_document_names_all_that_is_declared_and_nothing_else() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_.]+)`", text))
    assert sorted(DECLARED - named) == []
    dotted = {name for name in named if name.startswith(("pagemesh.", "gen_ai.", "error."))}
    assert sorted(dotted - DECLARED) == []


def test_names_for_generative_ai_are_those_of_the_conventions() -> None:
    conventions = {
        value
        for module in (gen_ai_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    foreign = {
        name
        for name in DECLARED
        if "." in name and not name.startswith("pagemesh.") and not OF_VLLM.fullmatch(name)
    }
    assert len(foreign) > 10
    assert foreign - conventions == set()
