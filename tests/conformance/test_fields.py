"""What the clients can send is what the documentation decides about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import embedding_create_params
from openai.types.responses import response_create_params

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "params"),
    [
        ("models.md", embedding_create_params.EmbeddingCreateParams),
        ("other-apis.md", response_create_params.ResponseCreateParamsBase),
        ("other-apis.md", message_create_params.MessageCreateParamsBase),
        ("other-apis.md", beta_message_create_params.MessageCreateParamsBase),
    ],
    ids=["embeddings", "responses", "messages", "beta messages"],
)
def test_every_field_of_the_clients_is_described(page: str, params: type) -> None:
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", text))))
    # A model has to be named everywhere, and the other is what the client itself turns into a header.
    assert sorted(set(params.__annotations__) - words - {"model", "betas"}) == []
