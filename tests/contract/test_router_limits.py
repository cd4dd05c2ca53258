"""What a tenant may use, for every service, and what it is told when it had that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pagemesh.client import AsyncClient
from pagemesh.config import TenantsConfig
from pagemesh.errors import RateLimitError
from tests.contract.http_answers import http_body, pairs
from tests.contract.router_harness import DEADLINE_S, running_mesh
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
