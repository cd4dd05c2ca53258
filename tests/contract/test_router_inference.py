"""The Inference service of a router, asked through the Python clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pagemesh.client import AsyncClient, Client, Completion, ModelInfo, Usage
from pagemesh.errors import (
    ContextLengthError,
    DeadlineError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PagemeshError,
    UnavailableError,
)
from pagemesh.rpc.status import from_rpc_error
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import inference_pb2
from tests.contract.full_mesh import NUM_TAKEN, occupied, one_seat
from tests.contract.router_harness import MODEL, Mesh, eventually, running_mesh
from tests.fakes.engine import expected_tokens, fake_logprobs

TOKENIZER = Tokenizer(MODEL)
PROMPT = list(range(10, 50))
MESSAGES = [{"role": "user", "content": "hi hi hi"}]


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(prefill=1, num_blocks=256) as mesh:
        yield mesh


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(mesh.address) as client:
        yield client


async def test_token_ids_come_with_their_text(client: AsyncClient) -> None:
    tokens = expected_tokens(PROMPT, 8)
    assert await client.complete(token_ids=PROMPT, max_tokens=8, seed=0) == Completion(
        TOKENIZER.decode(tokens), tokens, "length", Usage(40, 8, 0)
    )


async def test_log_probabilities_come_with_their_tokens(client: AsyncClient) -> None:
    settings: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 6, "seed": 0}
    tokens = expected_tokens(PROMPT, 6)
    answer = await client.complete(logprobs=2, prompt_logprobs=0, **settings)
    assert answer.token_ids == tokens
    assert answer.logprobs == tuple(fake_logprobs(token_id, 2) for token_id in tokens)
    assert answer.prompt_logprobs == tuple(fake_logprobs(token_id, 0) for token_id in PROMPT[1:])
    answer = await client.complete(**settings)
    assert (answer.token_ids, answer.logprobs, answer.prompt_logprobs) == (tokens, (), ())


async def test_a_stop_string_cuts_the_log_probabilities_too(client: AsyncClient) -> None:
    text = TOKENIZER.decode(expected_tokens(PROMPT, 50))
    answer = await client.complete(token_ids=PROMPT, seed=0, stop=[text[20:24]], logprobs=0)
    assert [each.token_id for each in answer.logprobs] == list(answer.token_ids)


async def test_text_and_conversations_are_tokenized(client: AsyncClient) -> None:
    for ids, settings in (
        (await client.tokenize("hi hi"), {"prompt": "hi hi"}),
        (await client.tokenize(messages=MESSAGES), {"messages": MESSAGES}),
    ):
        answer = await client.complete(max_tokens=4, seed=2, **settings)
        assert answer.token_ids == expected_tokens(ids, 4, 2)
    assert await client.detokenize(await client.tokenize("hi hi")) == "hi hi"
    ids = await client.tokenize(messages=MESSAGES)
    assert await client.detokenize(ids) == (
        "<|im_start|>user\nhi hi hi<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_an_answer_comes_in_chunks(client: AsyncClient) -> None:
    chunks = [chunk async for chunk in client.generate(token_ids=PROMPT, max_tokens=256, seed=0)]
    assert len(chunks) > 1
    assert "".join(chunk.text for chunk in chunks) == TOKENIZER.decode(expected_tokens(PROMPT, 256))
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_without_a_limit_the_answer_fills_the_context(client: AsyncClient) -> None:
    answer = await client.complete(token_ids=PROMPT, seed=0)
    assert answer.usage.num_completion_tokens == 512 - 40


async def test_stop_strings_end_the_answer(client: AsyncClient) -> None:
    text = TOKENIZER.decode(expected_tokens(PROMPT, 50))
    answer = await client.complete(token_ids=PROMPT, seed=0, stop=[text[20:24]])
    assert answer.text == text[: text.index(text[20:24])]
    assert answer.finish_reason == "stop"


async def test_the_models_are_listed_with_their_workers(client: AsyncClient) -> None:
    assert await client.models() == [ModelInfo("demo", 512, 1, 1)]


@pytest.mark.parametrize(
    ("settings", "kind", "param"),
    [
        ({"prompt": "x", "model": "nope"}, ModelNotFoundError, "model"),
        ({"prompt": ""}, InvalidRequestError, "text"),
        ({"messages": []}, InvalidRequestError, "chat.messages"),
        (
            {"messages": [{"role": "alien", "content": ""}]},
            InvalidRequestError,
            "chat.messages[0].role",
        ),
        ({"token_ids": []}, InvalidRequestError, "token_ids"),
        ({"token_ids": [2048]}, InvalidRequestError, "token_ids"),
        ({"token_ids": [10] * 512}, ContextLengthError, "token_ids"),
        ({"token_ids": [10], "max_tokens": 512}, ContextLengthError, "sampling.max_tokens"),
        ({"prompt": "x", "temperature": 3.0}, InvalidRequestError, "sampling.temperature"),
        ({"prompt": "x", "temperature": float("nan")}, InvalidRequestError, "sampling.temperature"),
        ({"prompt": "x", "top_p": 1.5}, InvalidRequestError, "sampling.top_p"),
        ({"prompt": "x", "min_p": 1.5}, InvalidRequestError, "sampling.min_p"),
        (
            {"prompt": "x", "repetition_penalty": -1.0},
            InvalidRequestError,
            "sampling.repetition_penalty",
        ),
        ({"prompt": "x", "logit_bias": {9999: 1.0}}, InvalidRequestError, "sampling.logit_bias"),
        ({"prompt": "x", "logprobs": 21}, InvalidRequestError, "sampling.logprobs"),
        (
            {"prompt": "x", "max_tokens": 2, "min_tokens": 3},
            InvalidRequestError,
            "sampling.min_tokens",
        ),
        ({"prompt": "x", "bad_words": [""]}, InvalidRequestError, "bad_words"),
        ({"prompt": "x", "stop": ["a"] * 65}, InvalidRequestError, "stop"),
        ({"prompt": "x", "stop": [""]}, InvalidRequestError, "stop"),
    ],
)
async def test_bad_requests_raise_the_matching_exception(
    client: AsyncClient, settings: dict[str, Any], kind: type[PagemeshError], param: str
) -> None:
    with pytest.raises(PagemeshError) as error:
        await client.complete(**settings)
    assert type(error.value) is kind
    assert error.value.param == param


async def test_a_request_without_a_prompt_is_refused(mesh: Mesh) -> None:
    call = mesh.inference.Generate(inference_pb2.GenerateRequest())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    mapped = from_rpc_error(error.value)
    assert isinstance(mapped, InvalidRequestError)
    assert mapped.param == "prompt"


async def test_a_timeout_raises() -> None:
    async with (
        running_mesh(seconds_per_token=0.05) as mesh,
        AsyncClient(mesh.address) as client,
    ):
        with pytest.raises(DeadlineError):
            await client.complete(token_ids=PROMPT, timeout=0.3)


async def test_leaving_the_iteration_stops_the_work() -> None:
    async with (
        running_mesh(seconds_per_token=0.02) as mesh,
        AsyncClient(mesh.address) as client,
    ):
        engine = mesh.workers["decode-0"].engine
        answer = asyncio.create_task(client.complete(token_ids=PROMPT))
        await eventually(lambda: engine.num_free_blocks < 64)
        answer.cancel()
        await eventually(lambda: engine.num_free_blocks == 64)


async def test_an_absent_mesh_raises() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError):
            await client.complete("x", timeout=5)


async def test_the_blocking_client_does_the_same(mesh: Mesh) -> None:
    def work() -> tuple[Any, ...]:
        with Client(mesh.address) as client:
            chunks = list(client.generate(token_ids=PROMPT, max_tokens=8, seed=0))
            return (
                client.complete(token_ids=PROMPT, max_tokens=8, seed=0),
                "".join(chunk.text for chunk in chunks),
                client.detokenize(client.tokenize("hi hi")),
                client.models(),
            )

    answer, text, detokenized, models = await asyncio.to_thread(work)
    assert answer.token_ids == expected_tokens(PROMPT, 8)
    assert answer.text == text == TOKENIZER.decode(answer.token_ids)
    assert detokenized == "hi hi"
    assert models == [ModelInfo("demo", 512, 1, 1)]


async def test_the_blocking_client_raises_too() -> None:
    async with one_seat(max_waiting_requests=1) as mesh:

        def refused() -> None:
            with Client(mesh.address) as client, pytest.raises(OverloadedError) as found:
                client.complete(token_ids=PROMPT)
            assert found.value.retry_after == 1.0
            with Client(mesh.address) as client, pytest.raises(ModelNotFoundError):
                client.tokenize("x", model="nope")

        async with occupied(mesh, NUM_TAKEN + 1):
            await asyncio.to_thread(refused)
        engine = mesh.workers["decode-0"].engine
        await eventually(lambda: engine.num_free_blocks == 64)
