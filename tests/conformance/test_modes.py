"""The modes are what they say: otherwise all tests of this folder would run twice on the same path."""

from __future__ import annotations

from tests.conformance.conftest import Served
from tests.mesh.harness import MODEL


def test_prompts_are_prefilled_where_the_mode_says(served: Served) -> None:
    mesh = served.mesh

    def received() -> float:
        return mesh.metric("decode-0", "pagemesh:kv_tokens_received_total")

    before = received()
    stream = mesh.client().completions.create(
        model=MODEL,
        prompt="The capital of France is " * 6,
        max_tokens=8,
        temperature=0,
        stream=True,
    )
    assert "".join(piece.choices[0].text for piece in served.disturbed(stream))
    assert (received() > before) == (served.mode.name == "disaggregated")
