"""Keys at the router's door, for every service, and what a key opens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pagemesh.client import AsyncClient, Client
from pagemesh.config import TenantsConfig
from pagemesh.config.environment import API_KEY_VARIABLE
from pagemesh.errors import UnauthenticatedError
from pagemesh.v1 import anthropic_pb2_grpc
from tests.contract.http_answers import http_body, pairs, read
from tests.contract.router_harness import Mesh, eventually, running_mesh
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
    replace,
)


@pytest.fixture
async def mesh(keys: Path) -> AsyncIterator[Mesh]:
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        yield mesh


@pytest.mark.parametrize(
    "metadata",
    [bearer(ACME), {"authorization": f"bearer  {ACME}"}, {"x-api-key": ACME}],
    ids=["OpenAI's", "sloppy", "Anthropic's"],
)
async def test_a_key_comes_as_either_clients_send_it(mesh: Mesh, metadata: dict[str, str]) -> None:
    answer = await mesh.completions(BODY, **metadata)
    assert answer.status == 200
    assert answer.headers["x-pagemesh-tenant"] == "acme"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "You didn't provide an API key"),
        ({"authorization": ACME}, "You didn't provide an API key"),
        ({"authorization": f"Basic {ACME}"}, "You didn't provide an API key"),
        (bearer(WRONG), "Incorrect API key provided: pm-wr…"),
        ({"x-api-key": WRONG}, "Incorrect API key provided: pm-wr…"),
        # OpenAI's way goes first.
        ({**bearer(WRONG), "x-api-key": ACME}, "Incorrect API key provided: pm-wr…"),
    ],
)
async def test_without_the_right_key_nothing_is_done(
    mesh: Mesh, metadata: dict[str, str], message: str
) -> None:
    answer = await mesh.completions(BODY, **metadata)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "x-pagemesh-tenant" not in answer.headers
    error = error_of(answer)
    assert error.pop("message").startswith(message)
    assert error == {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
    assert mesh.workers["decode-0"].metric("vllm:prompt_tokens_total", model_name="demo") == 0
    assert refusals(mesh, "key") == 1


async def test_anthropics_clients_get_anthropics_error(mesh: Mesh) -> None:
    stub: anthropic_pb2_grpc.AnthropicAsyncStub = anthropic_pb2_grpc.AnthropicStub(mesh.channel)
    answer = await read(stub.Messages(http_body({}), metadata=pairs({"x-request-id": "r-1"})))
    assert answer.status == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.json()["request_id"] == "r-1"


async def test_the_typed_clients_send_their_key(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(mesh.address, api_key=ACME) as client:
        assert (await client.complete(token_ids=PROMPT, max_tokens=2)).usage.num_prompt_tokens == 70
        assert await client.models()
    monkeypatch.setenv(API_KEY_VARIABLE, OTHER)

    def ask() -> int:
        with Client(mesh.address) as client:
            assert client.models()
            return client.complete(token_ids=PROMPT, max_tokens=2).usage.num_prompt_tokens

    assert await asyncio.to_thread(ask) == 70
    async with AsyncClient(mesh.address, api_key=WRONG) as client:
        with pytest.raises(UnauthenticatedError, match="Incorrect API key"):
            await client.models()
        with pytest.raises(UnauthenticatedError, match="Incorrect API key"):
            await client.complete(token_ids=PROMPT)


async def test_a_changed_file_holds_without_a_restart(
    keys: Path, mesh: Mesh, capfd: pytest.CaptureFixture[str]
) -> None:
    async def status(key: str) -> int:
        return (await mesh.completions(BODY, **bearer(key))).status

    def reads(outcome: str) -> float:
        labels = {"outcome": outcome}
        name = "pagemesh:key_file_reads_total"
        return mesh.router._metrics.registry.get_sample_value(name, labels) or 0.0

    await eventually(lambda: reads("taken") == 1)
    key_file(keys, acme={})
    await eventually(lambda: reads("taken") == 2)
    assert (await status(ACME), await status(OTHER)) == (200, 401)
    # A file that cannot be used, and one that is gone, change nothing.
    replace(keys, "tenants: {acme: {keys: [" + OTHER)
    await eventually(lambda: reads("refused") == 1)
    await asyncio.to_thread(keys.unlink)
    await eventually(lambda: reads("refused") == 2)
    assert (await status(ACME), await status(OTHER)) == (200, 401)
    key_file(keys, other={})
    await eventually(lambda: reads("taken") == 3)
    assert (await status(ACME), await status(OTHER)) == (401, 200)
    logged = "".join(capfd.readouterr())
    assert "key file refused" in logged
    assert ACME not in logged
    assert OTHER not in logged


@pytest.mark.parametrize("prefill", [0, 1])
async def test_tenants_meet_no_blocks_of_others_whatever_their_bodies_say(
    keys: Path, prefill: int
) -> None:
    limits = TenantsConfig(api_key_file=str(keys))
    async with running_mesh(tenants=limits, decode=1, prefill=prefill) as mesh:

        async def cached(key: str, **body: str) -> int:
            answer = await mesh.completions({**BODY, **body}, **bearer(key))
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert await cached(ACME) == 0
        assert await cached(ACME) == 64
        assert await cached(OTHER) == 0
        assert await cached(OTHER, cache_salt="acme") == 0
        assert await cached(ACME, cache_salt="acme") == 0
        assert await cached(OTHER, cache_salt="acme") == 64


async def test_logs_name_the_tenant_and_never_the_key(
    mesh: Mesh, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = await mesh.completions({"prompt": []}, **bearer(ACME))
    assert answer.status == 400
    await mesh.completions(BODY, **bearer(WRONG))
    (line,) = [text for text in capfd.readouterr().out.splitlines() if "request refused" in text]
    assert "acme" in line
    assert ACME not in line
