"""A mesh that is asked for more than it can do, seen by the real clients."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import pytest

from pagemesh.client import Client
from pagemesh.errors import OverloadedError
from pagemesh.router.tenants.keys import hash_of
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh, running_mesh, until
from tests.support.late_imports import openai
from tests.support.metrics import metric

pytestmark = pytest.mark.costly

Refusal = TypeVar("Refusal", bound=Exception)

HEAVY, LIGHT = "pm-heavy-0123456789abcdef", "pm-light-0123456789abcdef"
DEMO = Path(__file__).resolve().parents[2] / "models/demo"
NUM_PLACES = 10
NUM_FLOODING = 24
LONG = {"model": MODEL, "prompt": "Tell me of the sea.", "max_tokens": 300, "stream": True}


class Flooded(NamedTuple):
    """A mesh with a heavy tenant's clients, who ask for more than it has places for as long as they are let."""

    mesh: Mesh
    ended: threading.Event

    def client(self, key: str) -> openai.OpenAI:
        """A client that does not try again by itself."""
        return openai.OpenAI(
            base_url=f"{self.mesh.url}/v1", api_key=key, timeout=DEADLINE_S, max_retries=0
        )

    def router_page(self) -> str:
        headers = {"authorization": f"Bearer {LIGHT}"}
        return httpx.get(f"{self.mesh.url}/metrics", headers=headers, timeout=DEADLINE_S).text


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    """One decode worker with two slots, and a short queue."""
    folder = tmp_path_factory.mktemp("overload")
    path = folder / "keys.yaml"
    keys = {"heavy": HEAVY, "light": LIGHT}
    path.write_text(
        json.dumps({"tenants": {name: {"keys": [hash_of(key)]} for name, key in keys.items()}})
    )
    arguments = ["--model", str(DEMO), "--no-sample", "--prefill", "0", "--max-num-seqs", "2"]
    arguments += ["--max-waiting-requests", str(NUM_PLACES), "--api-key-file", str(path)]
    with running_mesh(folder, *arguments) as mesh:
        yield Flooded(mesh, threading.Event())


@pytest.fixture
def flooded(small: Flooded) -> Iterator[Flooded]:
    """While clients of the heavy tenant ask again and again."""
    ended = small.ended
    ended.clear()

    def ask() -> None:
        headers = {"authorization": f"Bearer {HEAVY}"}
        with httpx.Client(base_url=small.mesh.url, headers=headers, timeout=DEADLINE_S) as client:
            while not ended.is_set():
                # A router that gets no processor for a second is given up by the gateway, like one that froze:
                # who is cut off by that asks again.
                with (
                    contextlib.suppress(httpx.RemoteProtocolError),
                    client.stream(
                        "POST", "/v1/completions", json=LONG | {"ignore_eos": True}
                    ) as answer,
                ):
                    for _ in answer.iter_lines():
                        if ended.is_set():
                            break
                    if answer.status_code == 429:
                        ended.wait(0.2)

    with ThreadPoolExecutor(NUM_FLOODING) as pool:
        asking = [pool.submit(ask) for _ in range(NUM_FLOODING)]
        try:
            until(lambda: _num_refused(small, "queue_full") > 0, "the queue is full")
            yield small
        finally:
            ended.set()
            for each in asking:
                each.result(DEADLINE_S)


def refusal(kind: type[Refusal], ask: Callable[[], object]) -> Refusal:
    """Ask until it is refused so: now and then, a place is free."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            ask()
        except kind as error:
            return error
    raise AssertionError("no request was refused")


def _num_refused(flooded: Flooded, reason: str) -> float:
    return metric(flooded.router_page(), "pagemesh:requests_refused_total", reason=reason)


def test_a_full_queue_is_a_rate_limit_for_whoever_fills_it(flooded: Flooded) -> None:
    with flooded.client(HEAVY) as client:
        error = refusal(
            openai.RateLimitError,
            lambda: client.completions.create(model=MODEL, prompt="x", max_tokens=1),
        )
    assert error.code == "rate_limit_exceeded"
    assert "of 'heavy'" in error.message
    assert 1 <= int(error.response.headers["retry-after"]) <= 60
    assert flooded.mesh.process.poll() is None


def test_the_other_tenant_is_served_meanwhile(flooded: Flooded) -> None:
    with flooded.client(LIGHT) as client:
        for _ in range(3):
            answer = client.completions.create(model=MODEL, prompt="x", max_tokens=4)
            assert answer.choices[0].finish_reason in ("stop", "length")
    page = flooded.router_page()
    assert metric(page, "pagemesh:requests_queued", model_name=MODEL) > 0
    assert metric(page, "vllm:num_requests_waiting", model_name=MODEL) > 0


def test_openais_client_comes_back_when_it_was_told_to(flooded: Flooded) -> None:
    told: list[float] = []

    def note(response: Any) -> None:
        if response.status_code == 429:
            told.append(time.monotonic() + int(response.headers["retry-after"]))
            # The others are gone by then.
            flooded.ended.set()

    with flooded.client(HEAVY).with_options(
        max_retries=5, http_client=openai.DefaultHttpxClient(event_hooks={"response": [note]})
    ) as client:
        deadline = time.monotonic() + DEADLINE_S
        while not told:
            assert time.monotonic() < deadline, "it is never refused"
            answer = client.completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert answer.choices
    # By itself, and not before it was told to.
    assert time.monotonic() > told[-1] - 0.1


def test_a_deadline_holds_through_gateway_and_queue(flooded: Flooded) -> None:
    with flooded.client(HEAVY) as client:
        began = time.monotonic()
        with pytest.raises(openai.APIStatusError) as found:
            client.completions.create(
                model=MODEL,
                prompt="x",
                max_tokens=300,
                extra_headers={"x-request-timeout": "0.05"},
                extra_body={"ignore_eos": True},
            )
        assert time.monotonic() - began < 2
        # In the queue, in front of it, or at its end.
        assert found.value.status_code in (429, 504)
    # Of one who finds a place, as nobody else's are looked at.
    wrong = pytest.raises(openai.BadRequestError, match="x-request-timeout is 'soon'")
    with flooded.client(LIGHT) as client, wrong:
        client.completions.create(
            model=MODEL, prompt="x", extra_headers={"x-request-timeout": "soon"}
        )


def test_the_typed_client_is_told_when_to_come_back(flooded: Flooded) -> None:
    with Client(flooded.mesh.address, api_key=HEAVY) as client:
        error = refusal(OverloadedError, lambda: client.complete("x", max_tokens=1))
    assert error.retry_after is not None
    assert error.retry_after >= 1
