"""Keys and tokens stand in no log, metric or trace, whatever is done with them, at any log level."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from pagemesh.client import Client
from pagemesh.errors import UnauthenticatedError
from tests.mesh.harness import Mesh, running_mesh, until
from tests.mesh.secured import files, metrics_page, ports
from tests.support.late_imports import openai
from tests.support.trace_receiver import TraceReceiver, running_receiver

pytestmark = pytest.mark.costly

GOOD, WRONG, HUB, TRACES = (
    "pm-goodkey-9f8e7d6c5b4a3210",
    "pm-wrongkey-0123456789fedcba",
    "hf_hub0token1secret2",
    "traces0key1secret2",
)
ELSEWHERE = {
    name: f"{WRONG}-in-{name}"
    for name in ("proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token")
}
BODY = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def receiver() -> Iterator[TraceReceiver]:
    with running_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def mesh(receiver: TraceReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PAGEMESH_API_KEY", GOOD)
        environment.setenv("HF_TOKEN", HUB)
        environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{TRACES}")
        arguments = ("--tls", "--log-level", "debug", "--otlp-traces-endpoint", receiver.address)
        with running_mesh(tmp_path_factory.mktemp("secrets"), *arguments) as running:
            yield running


def use_keys(mesh: Mesh) -> None:
    """Rightly, wrongly, and in places where none belongs."""
    url = f"{mesh.url}/v1"
    with openai.OpenAI(base_url=url, api_key=GOOD, max_retries=0) as client:
        client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{**BODY, "temperature": 99})  # type: ignore[call-overload]
    with (
        openai.OpenAI(base_url=url, api_key=WRONG, max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.chat.completions.create(**BODY)  # type: ignore[call-overload]
    with Client(mesh.address, api_key=WRONG) as typed, pytest.raises(UnauthenticatedError):
        typed.complete("Hello", max_tokens=1)
    with Client(mesh.address, api_key=GOOD) as typed:
        typed.complete("Hello", max_tokens=1)
    for headers in (
        {"authorization": f"Bearer {GOOD}", **ELSEWHERE},
        {"authorization": f"Basic {WRONG}"},
        {"authorization": f"Bearer {WRONG} {WRONG}", **ELSEWHERE},
        {"x-api-key": WRONG, "anthropic-version": "2023-06-01"},
    ):
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/nothing", "/metrics", "/mesh"):
            httpx.post(f"{mesh.url}{path}?api_key={WRONG}", json=BODY, headers=headers, timeout=10)


def refusals(mesh: Mesh) -> list[str]:
    lines = mesh.logged()["access.jsonl"].splitlines()
    return [line for line in lines if '"status":401' in line.replace(" ", "")]


def test_no_secret_is_said_anywhere(mesh: Mesh, receiver: TraceReceiver) -> None:
    use_keys(mesh)
    until(lambda: len(receiver.spans) > 2, "spans of requests are exported")
    assert receiver.headers["authorization"] == f"Bearer {TRACES}"
    # Envoy writes its log once a second.
    until(lambda: refusals(mesh), "requests without a key are in the access log")
    supervisor = files(mesh, "supervisor")
    keys = [path.read_text() for path in Path(str(supervisor.mesh_key)).parent.glob("*.key")]
    lines = [line for key in keys for line in key.splitlines() if "-----" not in line]
    said = {f"log of {name}": text for name, text in mesh.logged().items()}
    for part, address in ports(mesh, "--metrics-port").items():
        said[f"metrics of {part}"] = metrics_page(address, supervisor)
    said["metrics of the gateway"] = httpx.get(
        f"{mesh.url}/metrics", headers={"authorization": f"Bearer {GOOD}"}, timeout=10
    ).text
    said["traces"] = "\n".join(f"{span.span} {span.resource}" for span in receiver.spans)
    for process in [psutil.Process(mesh.process.pid), *mesh.parts().values()]:
        said[f"command line of {process.pid}"] = " ".join(process.cmdline())
    # That there is something to look through: debug lines, lines of refusals.
    assert '"level": "debug"' in said["log of router.log"]
    assert "pagemesh:requests_refused_total" in said["metrics of router"]
    assert len(lines) >= 12
    # What begins the keys is told to who sent them, and stands in errors alone.
    secrets = {GOOD, WRONG, HUB, TRACES, *ELSEWHERE.values(), *lines}
    found = [
        (place, secret) for place, text in said.items() for secret in secrets if secret in text
    ]
    assert found == []


def test_what_clients_are_told_of_a_key_is_how_it_begins(mesh: Mesh) -> None:
    answer = httpx.post(
        f"{mesh.url}/v1/chat/completions",
        json=BODY,
        headers={"authorization": f"Bearer {WRONG}"},
        timeout=10,
    )
    assert answer.status_code == 401
    assert WRONG[:5] in answer.text
    assert WRONG[:9] not in json.dumps(answer.json())
