"""What the clients can send is what the documentation decides about."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.late_imports import anthropic, openai

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "params_of"),
    [
        ("models.md", lambda: openai.types.embedding_create_params.EmbeddingCreateParams),
        (
            "other-apis.md",
            lambda: openai.types.responses.response_create_params.ResponseCreateParamsBase,
        ),
        ("other-apis.md", lambda: anthropic.types.message_create_params.MessageCreateParamsBase),
        (
            "other-apis.md",
            lambda: anthropic.types.beta.message_create_params.MessageCreateParamsBase,
        ),
    ],
    ids=["embeddings", "responses", "messages", "beta messages"],
)
def test_every_field_of_the_clients_is_described(page: str, params_of: Callable[[], type]) -> None:
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", text))))
    # A model has to be named everywhere, and the other is what the client itself turns into a header.
    assert sorted(set(params_of().__annotations__) - words - {"model", "betas"}) == []
