"""Keys, tenants and limits in front of a whole mesh, seen by the real clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from pagemesh.cli.main import main
from pagemesh.client import Client
from pagemesh.errors import UnauthenticatedError
from pagemesh.router.tenants.keys import hash_of
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh, running_mesh, until
from tests.support.late_imports import openai

pytestmark = pytest.mark.costly

FLAG, ACME, OTHER, SMALL, GONE = (f"pm-{name}-0123456789abcdef" for name in "fabsg")
LONG = "Tell me of the sea, the ships on it, and the harbours that they come from. " * 4


class KeyedMesh(NamedTuple):
    mesh: Mesh
    key_file: Path

    def client(self, key: str) -> openai.OpenAI:
        """A client that does not try again by itself."""
        return openai.OpenAI(
            base_url=f"{self.mesh.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S
        )

    def num_cached(self, key: str) -> int | None:
        """Prompt tokens of a long question that nobody computed for the holder of the key."""
        with self.client(key) as client:
            answer = client.completions.create(
                model=MODEL, prompt=LONG, max_tokens=2, temperature=0
            )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedMesh]:
    """A prefill and a decode worker behind a key of the command line, and tenants in a file."""
    folder = tmp_path_factory.mktemp("keyed")
    path = folder / "keys.yaml"
    limits = {"a": {}, "b": {}, "g": {}, "s": {"requests_per_minute": 2, "tokens_per_minute": 500}}
    keys = {"a": ACME, "b": OTHER, "g": GONE, "s": SMALL}
    tenants = {name: {"keys": [hash_of(keys[name])], **limits[name]} for name in keys}
    path.write_text(json.dumps({"tenants": tenants}))
    arguments = ["--api-key", FLAG, "--api-key-file", str(path)]
    arguments += ["--remote-prefill-min-tokens", "16"]
    with running_mesh(folder, *arguments) as mesh:
        yield KeyedMesh(mesh, path)


def test_without_the_right_key_clients_raise_what_they_raise_for_openai(keyed: KeyedMesh) -> None:
    with (
        keyed.client("pm-wrong-0123456789abcdef") as client,
        pytest.raises(
            openai.AuthenticationError, match="Incorrect API key provided: pm-wr"
        ) as found,
    ):
        client.models.list()
    assert found.value.code == "invalid_api_key"
    assert found.value.response.headers["www-authenticate"] == "Bearer"
    for path in ("/v1/models", "/metrics"):
        assert httpx.get(f"{keyed.mesh.url}{path}", timeout=DEADLINE_S).status_code == 401
    for path in ("/health", "/ready", "/version"):
        assert httpx.get(f"{keyed.mesh.url}{path}", timeout=DEADLINE_S).status_code == 200
    with (
        Client(keyed.mesh.address, api_key="pm-wrong") as typed,
        pytest.raises(UnauthenticatedError),
    ):
        typed.models()
    with Client(keyed.mesh.address, api_key=ACME) as typed:
        assert [model.name for model in typed.models()] == [MODEL]


def test_a_limit_is_a_rate_limit_error_with_its_time(keyed: KeyedMesh) -> None:
    with keyed.client(SMALL) as client:
        raw = client.completions.with_raw_response.create(model=MODEL, prompt="Hi", max_tokens=2)
        assert raw.headers["x-ratelimit-limit-requests"] == "2"
        assert raw.headers["x-ratelimit-remaining-requests"] == "1"
        assert raw.headers["x-ratelimit-limit-tokens"] == "500"
        # The tenant's name is for the access log alone.
        assert "x-pagemesh-tenant" not in raw.headers
        with pytest.raises(openai.RateLimitError, match="too large: it needs") as found:
            client.completions.create(model=MODEL, prompt="Hi", max_tokens=1000)
        assert found.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.RateLimitError, match="requests per minute: limit 2") as found:
            client.completions.create(model=MODEL, prompt="Hi", max_tokens=2)
    assert found.value.code == "rate_limit_exceeded"
    assert 1 <= int(found.value.response.headers["retry-after"]) <= 30


def test_tenants_share_no_cached_prompt_also_when_it_is_prefilled_elsewhere(
    keyed: KeyedMesh,
) -> None:
    def received() -> float:
        return keyed.mesh.metric("decode-0", "pagemesh:kv_tokens_received_total")

    before = received()
    assert keyed.num_cached(ACME) == 0
    num_tokens = received() - before
    assert num_tokens > 48
    assert keyed.num_cached(OTHER) == 0
    assert received() == before + 2 * num_tokens
    cached = keyed.num_cached(ACME)
    assert cached is not None and cached >= 48
    assert keyed.num_cached(OTHER) == cached


def test_keys_come_and_go_without_a_restart(
    keyed: KeyedMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        url = f"{keyed.mesh.url}/v1/models"
        return httpx.get(url, headers=headers, timeout=DEADLINE_S).status_code

    assert main(["keys", "new", "--tenant", "new", "--file", str(keyed.key_file)]) == 0
    key = capsys.readouterr().out.strip()
    until(lambda: status(key) == 200, "the new key opens")
    content = json.loads(keyed.key_file.read_text())
    del content["tenants"]["g"]
    assert status(GONE) == 200
    keyed.key_file.write_text(json.dumps(content))
    until(lambda: status(GONE) == 401, "the removed key opens no more")
    assert status(ACME) == 200


def test_keys_are_nowhere_to_be_read_but_where_they_were_given(keyed: KeyedMesh) -> None:
    with keyed.client(ACME) as client:
        client.completions.create(model=MODEL, prompt="Hi", max_tokens=2)
    answered = keyed.mesh.output.partition("> What is the capital of France?\n< ")[2]
    assert answered and not answered.startswith("(no answer")
    assert f'-H "authorization: Bearer {FLAG}"' in keyed.mesh.output
    for process in keyed.mesh.parts().values():
        assert FLAG not in " ".join(process.cmdline())
    logs = {path.name: path.read_text() for path in keyed.key_file.parent.glob("logs/*")}
    assert "router.log" in logs
    for name, text in logs.items():
        for key in (FLAG, ACME, OTHER, SMALL, GONE):
            assert key not in text, name
    # Envoy writes its log once a second.
    access = keyed.key_file.parent / "logs/access.jsonl"
    until(lambda: '"tenant":"a"' in access.read_text(), "the access log names the tenant")
