"""Two decode workers, of which one goes in the middle of answers: clients are told the same as without that."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest

from pagemesh.local.processes import bound_to
from tests.mesh.harness import (
    DEADLINE_S,
    MODEL,
    Mesh,
    can_connect,
    running_mesh,
    slowed,
    tell_to_stop,
    until,
)
from tests.mesh.router_calls import address_of
from tests.mesh.test_freezes import frozen
from tests.support.ports import free_port

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
DECODERS = ("decode-0", "decode-1")
GRACE_S = 8.0
# Half of it is for requests to finish (MAX_HANDOVER_S), the rest for handing them over.
PATIENCE_S = GRACE_S / 2

STORY = "Tell me a long story about a river, a bridge and the town behind it. " * 8
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["names"],
}
REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"prompt": STORY, "temperature": 0},
    "several answers": {"prompt": STORY, "n": 3, "temperature": 1.3, "seed": 5},
    "log probabilities": {"prompt": STORY, "logprobs": 3, "temperature": 0.8, "seed": 6},
    "penalties": {
        "prompt": STORY,
        "temperature": 0.9,
        "seed": 7,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "extra_body": {"repetition_penalty": 1.2, "min_p": 0.01, "top_k": 40},
    },
    "structured": {
        "prompt": STORY,
        "temperature": 1,
        "seed": 8,
        "extra_body": {"structured_outputs": {"json": SCHEMA}},
    },
}
"""Each of about 300 tokens, which take some seconds."""


ARGUMENTS = (
    *("--model", str(DEMO), "--no-sample", "--decode", "2"),
    *("--grace-period", str(GRACE_S), "--max-num-seqs", "8"),
    # Computing takes so long that fetching is always better.
    *("--lookup-timeout", "5", "--max-num-batched-tokens", "8"),
)


@pytest.fixture(scope="module")
def twin_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two decode workers, one of everything else."""
    with running_mesh(tmp_path_factory.mktemp("twin"), *ARGUMENTS) as running:
        yield running


@pytest.fixture
def mesh(twin_mesh: Mesh) -> Mesh:
    wait_until_whole(twin_mesh, 1)
    twin_mesh.wait_until_idle()
    return twin_mesh


@pytest.fixture
def doubled_mesh(tmp_path: Path) -> Iterator[Mesh]:
    """Everything twice but gateway and kvstore."""
    with running_mesh(tmp_path, *ARGUMENTS, "--prefill", "2", "--router", "2") as running:
        wait_until_whole(running, 2)
        yield running


def wait_until_whole(mesh: Mesh, count: int) -> None:
    """So many routers reach two decode workers and so many prefill workers."""
    routers = ["router"] if count == 1 else ["router-0", "router-1"]
    until(
        lambda: all(
            mesh.metric(router, "pagemesh:workers", role=role) == number
            for router in routers
            for role, number in (("prefill", count), ("decode", 2))
        ),
        "the routers reach all workers",
    )


class Told:
    """What a client is told in a stream, and the longest time for which it is told nothing."""

    def __init__(self) -> None:
        self.choices: dict[int, list[Any]] = {}
        self.usage: tuple[int, int] | None = None
        self.num_chunks = 0
        self.longest_pause = 0.0

    def read(self, mesh: Mesh, request: Mapping[str, Any]) -> Told:
        """Ask, and read the answer to its end."""
        body = {"model": MODEL, "max_tokens": 1000, **request}
        body["extra_body"] = {"ignore_eos": True, **request.get("extra_body", {})}
        options: Any = {"include_usage": True}
        last = None
        with mesh.client().completions.create(
            **body, stream=True, stream_options=options
        ) as stream:
            for chunk in stream:
                now = time.monotonic()
                if last is not None:
                    self.longest_pause = max(self.longest_pause, now - last)
                last = now
                self.num_chunks += 1
                self._note(chunk)
        return self

    def _note(self, chunk: Any) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices:
            said = self.choices.setdefault(choice.index, ["", [], None])
            assert said[2] is None, "something follows the end"
            said[0] += choice.text
            if choice.logprobs is not None:
                said[1] += zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
            said[2] = choice.finish_reason


def num_migrated(mesh: Mesh, reason: str) -> float:
    return mesh.metric("router", "pagemesh:requests_resubmitted_total", reason=reason)


def running_on(mesh: Mesh) -> str:
    """The decode worker that runs something."""
    found = ""

    def look() -> bool:
        nonlocal found
        busy = [name for name in DECODERS if mesh.num_used_blocks(name)]
        found = busy[0] if busy else ""
        return bool(busy)

    until(look, "a worker runs the request")
    return found


def engine_of(mesh: Mesh, worker: str) -> psutil.Process:
    (engine,) = mesh.parts()[worker].children()
    return engine


def salted(request: Mapping[str, Any], salt: str) -> Mapping[str, Any]:
    return {**request, "extra_body": {**request.get("extra_body", {}), "cache_salt": salt}}


def ask_and_disturb(
    mesh: Mesh, request: Mapping[str, Any], disturb: Callable[[str], Callable[[], object]]
) -> tuple[Told, Told]:
    """What is told without and with something that happens to the decode worker in mid-answer.

    The one finds nothing of the other in any cache. What `disturb` does happens while all workers are slow, and what it
    gives is called when they no longer are.
    """
    undisturbed, told = Told(), Told()
    undisturbed.read(mesh, salted(request, "undisturbed"))
    mesh.wait_until_idle()
    with ThreadPoolExecutor(1) as pool:
        with slowed(*(engine_of(mesh, worker) for worker in DECODERS)):
            answer = pool.submit(told.read, mesh, salted(request, "disturbed"))
            until(lambda: told.num_chunks > 20 or answer.done(), "some tokens came")
            assert not answer.done(), answer.result().choices
            go_on = disturb(running_on(mesh))
        go_on()
        answer.result(60)
    return undisturbed, told


def pulls(mesh: Mesh, worker: str) -> float:
    return mesh.metric(worker, "pagemesh:kv_pulls_total", outcome="complete")


# The first one in this mesh: of links that were never measured the router believes that they are fast. One that
# it knows to be slow, as it may be on a busy machine, can make it have the missing KV computed instead.
def test_a_worker_that_stops_hands_over_what_it_cannot_finish_with_its_kv(mesh: Mesh) -> None:
    request = {
        "prompt": "Count from one to a thousand. " * 30,
        "temperature": 0,
        "max_tokens": 1500,
    }
    before = num_migrated(mesh, "drain"), num_migrated(mesh, "lost")
    num_pulled = {name: pulls(mesh, name) for name in mesh.workers()}
    stopped = ""

    def stop(worker: str) -> None:
        nonlocal stopped
        stopped = worker
        wait_until_back = tell_to_stop(mesh, worker)
        with slowed(engine_of(mesh, worker)):
            time.sleep(PATIENCE_S)
        wait_until_back()

    undisturbed, told = ask_and_disturb(mesh, request, lambda worker: partial(stop, worker))
    assert told.choices == undisturbed.choices
    assert num_migrated(mesh, "drain") - before[0] == 1
    assert num_migrated(mesh, "lost") == before[1]
    # By the decode worker that takes it over, or by a prefill worker, which sends it on.
    others = num_pulled.keys() - {stopped}
    assert sum(pulls(mesh, name) - num_pulled[name] for name in others) == 1


@pytest.mark.product(most=1)
@pytest.mark.parametrize("name", REQUESTS)
def test_answers_go_on_as_if_nothing_had_happened_when_their_worker_dies(
    mesh: Mesh, name: str
) -> None:
    before = num_migrated(mesh, "lost")
    undisturbed, told = ask_and_disturb(mesh, REQUESTS[name], mesh.kill)
    assert told.choices == undisturbed.choices
    assert told.usage == undisturbed.usage
    assert num_migrated(mesh, "lost") - before >= 1


@pytest.mark.costly
def test_an_answer_goes_on_when_its_worker_freezes(mesh: Mesh) -> None:
    before = num_migrated(mesh, "lost")
    thawed = Event()

    def freeze(worker: str) -> None:
        with frozen(mesh, worker):
            until(lambda: num_migrated(mesh, "lost") > before, "it has been noticed")
        thawed.set()

    undisturbed, told = ask_and_disturb(
        mesh, REQUESTS["greedy"], lambda worker: partial(freeze, worker)
    )
    assert thawed.is_set()
    assert told.choices == undisturbed.choices
    # What woke up has nothing left of it.
    mesh.wait_until_idle()


@contextmanager
def second_gateway(mesh: Mesh) -> Iterator[str]:
    """One more gateway to the mesh's routers; its URL."""
    port = free_port()
    routers = [address_of(mesh, router) for router in ("router-0", "router-1")]
    arguments = ("gateway", "--routers", *routers, "--port", str(port))
    command = bound_to(os.getpid(), (sys.executable, "-P", "-m", "pagemesh.cli", *arguments))
    gateway = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        until(lambda: can_connect(f"127.0.0.1:{port}"), "the second gateway is there")
        yield f"http://127.0.0.1:{port}"
    finally:
        gateway.terminate()
        gateway.wait(10)


@pytest.mark.exhaustive
def test_a_rolling_restart_under_load_costs_no_request(doubled_mesh: Mesh) -> None:
    mesh = doubled_mesh
    prompts = [f"{STORY} Number {number}." for number in range(6)]
    over = Event()
    asked = itertools.count()
    with second_gateway(mesh) as other, ThreadPoolExecutor(4) as pool:
        expected = {prompt: answer([mesh.url], prompt) for prompt in prompts}

        def load() -> int:
            """Ask until it is over; how often."""
            num_asked = 0
            while not over.is_set():
                prompt = prompts[next(asked) % len(prompts)]
                assert answer([mesh.url, other], prompt) == expected[prompt]
                num_asked += 1
            return num_asked

        clients = [pool.submit(load) for _ in range(4)]
        try:
            for part in ("decode-0", "prefill-1", "router-0", "kvstore", "decode-1", "router-1"):
                restart(mesh, part)
                wait_until_whole(mesh, 2)
            restart(mesh, "gateway")
        finally:
            over.set()
        assert sum(client.result(60) for client in clients) > 20


def restart(mesh: Mesh, part: str) -> None:
    """Tell a part to stop, and wait until it serves again."""
    wait_until_back = tell_to_stop(mesh, part)
    wait_until_back()


def answer(gateways: Sequence[str], prompt: str) -> str:
    """A whole answer of some tokens, which takes less than the grace period.

    Of the first gateway that takes the connection, as load balancers ask.
    """
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
    }
    for gateway in gateways:
        try:
            found = httpx.post(f"{gateway}/v1/completions", json=body, timeout=DEADLINE_S)
        except (httpx.ConnectError, httpx.ReadError):
            # Nobody listens, or it was reset in the queue of a socket that was just closed.
            continue
        assert found.status_code == 200, found.text
        return str(found.json()["choices"][0]["text"])
    raise AssertionError("no gateway takes connections")
