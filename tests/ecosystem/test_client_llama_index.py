"""LlamaIndex, by its classes for whatever speaks OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.ecosystem.questions import ANSWER, PLACE, QUESTION, REPORT, SKY, TEXTS, WIDTH

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def found(told: Callable[..., Any]) -> Any:
    return told("llama-index", "llama_index_client.py", QUESTION, PLACE, SKY, *TEXTS)


def test_chats_and_completions_come_whole_and_in_pieces(found: Any) -> None:
    assert found["whole"] == found["streamed"] == ANSWER
    assert found["completed"] == found["completion_streamed"] == " Paris."


def test_tools_are_called_and_agents_run_them(found: Any) -> None:
    assert found["calls"] == [["get_weather", {"city": "Oslo"}]]
    assert found["agent"] == [REPORT] * 2
    assert found["heard"] == ["Oslo", "Oslo"]


def test_answers_fill_a_pydantic_class(found: Any) -> None:
    assert found["structured"] == "Paris"


def test_an_index_over_embeddings_finds_a_text(found: Any) -> None:
    assert found["embedding"] == WIDTH
    assert found["found"] == [TEXTS[1]]


def test_its_errors_say_what_is_wrong(found: Any) -> None:
    assert found["wrong"]["kind"] == "NotFoundError"
    assert "'nope'" in found["wrong"]["message"]
