"""What a tenant may use, for every service, and what it is told when it had that."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pagemesh.client import AsyncClient
from pagemesh.config import TenantsConfig
from pagemesh.errors import InvalidRequestError, RateLimitError
from tests.contract.http_answers import Answer, http_body, pairs
from tests.contract.router_harness import DEADLINE_S, Mesh, running_mesh
from tests.contract.tenant_keys import (
    ACME,
    BODY,
    OTHER,
    PROMPT,
    WRONG,
    bearer,
    error_of,
    key_file,
    refusals,
)


async def test_a_tenants_requests_and_tokens_are_limited(keys: Path) -> None:
    key_file(keys, acme={"requests_per_minute": 2, "tokens_per_minute": 150}, other={})
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        first = await mesh.completions(BODY, **bearer(ACME))
        assert first.status == 200
        limits = {k: v for k, v in first.headers.items() if k.startswith("x-ratelimit")}
        assert limits["x-ratelimit-limit-requests"] == "2"
        assert limits["x-ratelimit-remaining-requests"] == "1"
        assert limits["x-ratelimit-reset-requests"].endswith("s")
        assert limits["x-ratelimit-limit-tokens"] == "150"
        # While it runs: 70 of the prompt and 2 that it may generate.
        assert limits["x-ratelimit-remaining-tokens"] == "78"
        refused = await mesh.completions({**BODY, "max_tokens": 60}, **bearer(ACME))
        assert refused.status == 429
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert "130 requested" in error_of(refused)["message"]
        assert 20 <= int(refused.headers["retry-after"]) <= 21
        too_large = await mesh.completions({**BODY, "max_tokens": 81}, **bearer(ACME))
        # That one has used up the minute's requests: it is told so first.
        assert too_large.status == 429
        assert "on requests per minute" in error_of(too_large)["message"]
        assert 1 <= int(too_large.headers["retry-after"]) <= 30
        # Nobody else is concerned.
        for _ in range(3):
            answer = await mesh.completions({**BODY, "max_tokens": 90}, **bearer(OTHER))
            assert answer.status == 200
            assert not [key for key in answer.headers if key.startswith("x-ratelimit")]
        samples = {"tokens_per_minute": 1, "requests_per_minute": 1, "too_large": 0, "key": 0}
        for reason, value in samples.items():
            assert refusals(mesh, reason) == value, reason


async def test_what_was_not_generated_is_not_charged(keys: Path) -> None:
    key_file(keys, acme={"tokens_per_minute": 300})
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        for _ in range(2):
            # 72 of 170 that are reserved.
            answer = await mesh.completions(
                {**BODY, "max_tokens": 100, "stop_token_ids": list(range(1000))}, **bearer(ACME)
            )
            assert answer.status == 200
            assert answer.json()["usage"]["total_tokens"] == 71
        # A chat that may go on for ever reserves its prompt alone.
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        before = await mesh.chat({**chat, "stop_token_ids": list(range(1000))}, **bearer(ACME))
        assert before.status == 200
        too_large = await mesh.completions({**BODY, "max_tokens": 231}, **bearer(ACME))
        assert too_large.status == 429
        assert too_large.headers["x-should-retry"] == "false"
        assert "retry-after" not in too_large.headers
        assert "needs 301 tokens" in error_of(too_large)["message"]
        assert "is 300 tokens per minute" in error_of(too_large)["message"]


async def test_a_client_that_goes_away_is_charged_what_it_used(keys: Path) -> None:
    key_file(keys, acme={"tokens_per_minute": 600, "concurrent_requests": 1})
    limits = TenantsConfig(api_key_file=str(keys))
    async with running_mesh(tenants=limits, seconds_per_token=0.01) as mesh:
        stub, key = mesh.openai, pairs(bearer(ACME))
        body = http_body({"prompt": PROMPT, "max_tokens": 400, "stream": True})
        call = stub.Completions(body, metadata=key)
        async for _ in call:
            break
        busy = await mesh.completions(BODY, **bearer(ACME))
        assert busy.status == 429
        assert "concurrent requests: limit 1" in error_of(busy)["message"]
        call.cancel()
        deadline = time.monotonic() + DEADLINE_S
        answer = busy
        while answer.status == 429:
            assert time.monotonic() < deadline, "what ran is still counted"
            answer = await mesh.completions(BODY, **bearer(ACME))
        # 70 of its prompt, a few that were generated, and what this one reserves.
        assert 400 < int(answer.headers["x-ratelimit-remaining-tokens"]) <= 600 - 70 - 72 + 10


async def test_limits_hold_for_everybody_together_where_no_keys_are_asked_for() -> None:
    limits = TenantsConfig(requests_per_minute=2)
    async with running_mesh(tenants=limits) as mesh, AsyncClient(mesh.address) as client:
        await client.complete(token_ids=PROMPT, max_tokens=2)
        assert (await mesh.completions(BODY, **bearer(WRONG))).status == 200
        with pytest.raises(RateLimitError, match="requests per minute") as found:
            await client.complete(token_ids=PROMPT, max_tokens=2)
        assert found.value.retry_after is not None
        assert 25 < found.value.retry_after <= 30


MESSAGES = [{"role": "user", "content": "Hi"}]


async def test_no_answer_is_longer_than_its_tenant_may_have(keys: Path) -> None:
    key_file(
        keys,
        acme={"max_output_tokens": 3},
        other={"max_output_tokens": 4, "max_output_tokens_policy": "refuse"},
    )
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        await _cut(mesh)
        await _refused(mesh)


async def _cut(mesh: Mesh) -> None:
    key = bearer(ACME)
    two = (await mesh.completions({**BODY, "max_tokens": 50, "n": 2}, **key)).json()
    assert [choice["finish_reason"] for choice in two["choices"]] == ["length", "length"]
    assert two["usage"]["completion_tokens"] == 6
    assert (await mesh.completions({"prompt": PROMPT}, **key)).json()["usage"][
        "completion_tokens"
    ] == 3
    chat = (await mesh.chat({"messages": MESSAGES}, **key)).json()
    assert (chat["choices"][0]["finish_reason"], chat["usage"]["completion_tokens"]) == (
        "length",
        3,
    )
    message = (await mesh.messages({"messages": MESSAGES, "max_tokens": 9}, **key)).json()
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 3)
    response = (await mesh.responses({"input": "Hi", "max_output_tokens": 99}, **key)).json()
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 3
    async with AsyncClient(mesh.address, api_key=ACME) as client:
        for answer in (
            await client.complete(token_ids=PROMPT),
            await client.complete(token_ids=PROMPT, max_tokens=7),
        ):
            assert (answer.finish_reason, answer.usage.num_completion_tokens) == ("length", 3)
        with pytest.raises(InvalidRequestError, match=r"sampling\.min_tokens is 5"):
            await client.complete(token_ids=PROMPT, max_tokens=7, min_tokens=5)
    # A prompt leaves room for what the answer may have, and for no more.
    fits = {"prompt": [7] * 600, "truncate_prompt_tokens": -1, "max_tokens": 500}
    assert (await mesh.completions(fits, **key)).json()["usage"]["prompt_tokens"] == 512 - 3
    long = {"messages": [{"role": "user", "content": "hi " * 600}], "truncate_prompt_tokens": -1}
    cut = (await mesh.chat({**long, "max_tokens": 500}, **key)).json()
    assert cut["usage"]["prompt_tokens"] == 512 - 3
    unmet = await mesh.chat({"messages": MESSAGES, "max_tokens": 9, "min_tokens": 4}, **key)
    assert (unmet.status, error_of(unmet)["param"]) == (400, "min_tokens")
    assert error_of(unmet)["message"] == ("min_tokens is 4, but at most 3 tokens can be generated")


async def _refused(mesh: Mesh) -> None:
    key = bearer(OTHER)
    asked: list[tuple[Callable[..., Awaitable[Answer]], dict[str, object], str]] = [
        (mesh.completions, {"prompt": PROMPT}, "max_tokens"),
        (mesh.chat, {"messages": MESSAGES}, "max_tokens"),
        (mesh.chat, {"messages": MESSAGES}, "max_completion_tokens"),
        (mesh.responses, {"input": "Hi"}, "max_output_tokens"),
        (mesh.messages, {"messages": MESSAGES}, "max_tokens"),
    ]
    for ask, body, field in asked:
        refused = await ask({**body, field: 5}, **key)
        assert refused.status == 400
        assert error_of(refused)["message"] == (
            f"{field} is 5, but answers of 'other' can have at most 4 tokens"
        )
        assert error_of(refused).get("param", field) == field
        assert (await ask({**body, field: 4}, **key)).status == 200
    async with AsyncClient(mesh.address, api_key=OTHER) as client:
        with pytest.raises(InvalidRequestError, match=r"sampling\.max_tokens is 5, but answers"):
            await client.complete(token_ids=PROMPT, max_tokens=5)
        answer = await client.complete(token_ids=PROMPT)
        assert answer.usage.num_completion_tokens == 4
