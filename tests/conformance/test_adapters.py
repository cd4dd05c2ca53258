"""LangChain's and LiteLLM's adapters of OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.conftest import KEY, Served
from tests.support.late_imports import langchain_openai, litellm

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."

CITY = {
    "title": "Answer",
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_langchain_invokes_streams_and_batches(chain: langchain_openai.ChatOpenAI) -> None:
    answer = chain.invoke(QUESTION)
    assert answer.content == ANSWER
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 3
    assert "".join(str(piece.content) for piece in chain.stream(QUESTION)) == ANSWER
    assert [each.content for each in chain.batch([QUESTION, QUESTION])] == [ANSWER, ANSWER]


def test_langchain_reads_structured_answers(chain: langchain_openai.ChatOpenAI) -> None:
    structured = chain.with_structured_output(CITY, method="json_schema", strict=True)
    assert structured.invoke(QUESTION)["city"] in ("Paris", "Rome")


def test_langchain_embeds(served: Served) -> None:
    embeddings = langchain_openai.OpenAIEmbeddings(
        model="demo",
        base_url=f"{served.mesh.url}/v1",
        api_key=KEY,
        # Otherwise it sends ids of OpenAI's own tokenizer.
        check_embedding_ctx_length=False,
    )
    assert [len(vector) for vector in embeddings.embed_documents(["one", "two"])] == [256, 256]


@pytest.mark.usefixtures("event_loop_of_thread")
def test_litellm_knows_a_prompt_that_is_too_long(lite: dict[str, Any]) -> None:
    """Its fallbacks for that depend on the class."""
    messages = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(litellm.exceptions.ContextWindowExceededError):
        litellm.completion(messages=messages, **lite)


def test_litellm_completes_and_streams(lite: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    answer = litellm.completion(messages=messages, temperature=0, **lite)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.completion_tokens > 3
    pieces = litellm.completion(messages=messages, temperature=0, stream=True, **lite)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == ANSWER


@pytest.mark.usefixtures("event_loop_of_thread")
def test_litellm_asks_for_structure_and_raises_its_own_errors(lite: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    json_schema = {"name": "answer", "strict": True, "schema": CITY}
    answer = litellm.completion(
        messages=messages,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": json_schema},
        **lite,
    )
    assert json.loads(answer.choices[0].message.content)["city"] in ("Paris", "Rome")
    with pytest.raises(litellm.exceptions.NotFoundError, match="nope"):
        litellm.completion(messages=messages, **lite | {"model": "openai/nope"})
    with pytest.raises(litellm.exceptions.BadRequestError, match="top_p"):
        litellm.completion(messages=messages, top_p=7, **lite)
