"""Retrieval with Milvus Lite over embeddings of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.ecosystem.questions import WIDTH
from tests.mesh.harness import MODEL, Mesh

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1500)]

ASKED = "Paris is the capital of France."
TEXTS = ("Cats sleep all day.", "The capital of France is Paris.", "3 + 9 = 12.")


def test_the_nearest_texts_are_found(mesh: Mesh, told: Callable[..., Any]) -> None:
    found = told("milvus", "milvus_client.py", ASKED, *TEXTS)
    answer = mesh.client().embeddings.create(model=MODEL, input=[ASKED, *TEXTS])
    asked, *vectors = [each.embedding for each in answer.data]
    # Of length 1 each.
    near = {
        text: sum(a * b for a, b in zip(asked, vector, strict=True))
        for text, vector in zip(TEXTS, vectors, strict=True)
    }
    ranked = sorted(TEXTS, key=lambda text: near[text], reverse=True)
    assert found["width"] == WIDTH
    assert [text for text, _ in found["found"]] == ranked
    assert ranked[0] == TEXTS[1]
    assert [score for _, score in found["found"]] == pytest.approx(
        [near[text] for text in ranked], abs=1e-3
    )
