"""A mesh with two kvstores on one Redis: either of them is killed, then Redis itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil
import pytest

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.mesh.harness import MODEL, Mesh, option, running_mesh, until
from tests.support.valkey import Valkey, running_valkey

pytestmark = pytest.mark.costly

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
KVSTORES = ("kvstore-0", "kvstore-1")
DECODERS = ("decode-0", "decode-1")
BLOCK_SIZE = 16
NUM_TOKENS = 6
# All full blocks in front of the last token.
NUM_REUSABLE = 96
PROMPTS = [[30 + (7 * i + 11 * n) % 400 for i in range(100)] for n in range(4)]


class Running(NamedTuple):
    """What the tests look at."""

    mesh: Mesh
    valkey: Valkey


class Answer(NamedTuple):
    """What a client gets for a prompt."""

    text: str
    num_cached: int
    route: dict[str, Any]
    """As the header says it."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two decode workers, so that it matters where a prompt goes."""
    with running_valkey() as valkey:
        arguments = ["--model", str(DEMO), "--no-sample", "--prefill", "0", "--decode", "2"]
        arguments += ["--kvstore", "2", "--index", valkey.url, "--explain-routes"]
        # On busy cores, an answer of the index may take longer than a router would wait for it.
        arguments += ["--lookup-timeout", "5"]
        with running_mesh(tmp_path_factory.mktemp("redis"), *arguments) as mesh:
            until(lambda: mesh.health().get("decode_workers") == 2, "both workers are reached")
            yield Running(mesh, valkey)


def ask(mesh: Mesh, prompt: list[int]) -> Answer:
    """A greedy completion, through the gateway."""
    raw = mesh.client().completions.with_raw_response.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=NUM_TOKENS,
        temperature=0,
        extra_headers={"x-pagemesh-explain": "true"},
        extra_body={"ignore_eos": True},
    )
    answer = raw.parse()
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    num_cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    return Answer(answer.choices[0].text, num_cached, json.loads(raw.headers["x-pagemesh-route"]))


@contextmanager
def steady_traffic(mesh: Mesh, expected: list[str]) -> Iterator[None]:
    """Requests one after the other, each of which has to be answered with the same text as before."""
    over = threading.Event()

    def run() -> int:
        num_asked = 0
        while not over.is_set():
            index = num_asked % len(expected)
            assert ask(mesh, PROMPTS[index]).text == expected[index]
            num_asked += 1
        return num_asked

    with ThreadPoolExecutor(1) as pool:
        asked: Future[int] = pool.submit(run)
        try:
            yield
        finally:
            over.set()
        assert asked.result(timeout=30) > 0


def address_of(mesh: Mesh, part: str) -> str:
    return f"127.0.0.1:{option(mesh.parts()[part], '--port')}"


def kvstore_of(mesh: Mesh, part: str) -> str:
    """The replica that a part is connected to; empty while that is none or both."""
    ports = {
        int(address_of(mesh, name).rpartition(":")[2]): name
        for name in KVSTORES
        if name in mesh.parts()
    }
    used = {
        ports[connection.raddr.port]
        for connection in mesh.parts()[part].net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED and connection.raddr.port in ports
    }
    return used.pop() if len(used) == 1 else ""


def holders(mesh: Mesh, kvstore: str, prompt: list[int]) -> dict[str, int]:
    """Leading blocks of a prompt on each worker, as one replica says."""
    with grpc.insecure_channel(address_of(mesh, kvstore)) as channel:
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        members = stub.Snapshot(kvstore_pb2.SnapshotRequest(), timeout=5).workers
        info = members[0].worker
        layout = info.kv_layout
        root = root_hash(
            info.model_fingerprint, layout.block_size, layout.dtype, arithmetic=info.arithmetic
        )
        names = hash_blocks(root, prompt, layout.block_size)
        request = kvstore_pb2.LookupRequest(
            block_hashes=b"".join(names), model_fingerprint=info.model_fingerprint
        )
        found = stub.Lookup(request, timeout=5).holders
    return {holder.worker_id: holder.block_count for holder in found}


def all_known_to_both(mesh: Mesh) -> bool:
    """Whether the replicas give the same answers, and each prompt is held by somebody."""
    one, two = ([holders(mesh, kvstore, prompt) for prompt in PROMPTS] for kvstore in KVSTORES)
    num_blocks = NUM_REUSABLE // BLOCK_SIZE
    return one == two and all(num_blocks in found.values() for found in one)


def all_captured(mesh: Mesh) -> bool:
    """Whether the router finds every prompt in the index, and sends it to whoever holds it."""
    answers = [ask(mesh, prompt) for prompt in PROMPTS]
    return all(
        answer.route["captured_tokens"] == answer.num_cached == NUM_REUSABLE for answer in answers
    )


def test_when_the_kvstore_of_the_router_is_killed_hits_go_on_through_the_other(
    running: Running,
) -> None:
    mesh, _ = running
    expected = [ask(mesh, prompt) for prompt in PROMPTS]
    until(lambda: all_captured(mesh), "the prompts are known")
    used = until(lambda: kvstore_of(mesh, "router"), "the router is connected to a kvstore")
    (other,) = set(KVSTORES) - {used}
    with steady_traffic(mesh, [answer.text for answer in expected]):
        wait_until_back = mesh.kill(used)
        until(lambda: kvstore_of(mesh, "router") == other, "the router uses the other kvstore")
        until(lambda: all_captured(mesh), "the prompts are found again")
        wait_until_back()
    until(lambda: all_known_to_both(mesh), "both kvstores know the same")
    assert mesh.health()["decode_workers"] == 2
    mesh.wait_until_idle()


def test_while_redis_is_away_load_decides_and_an_empty_one_is_filled_again(
    running: Running,
) -> None:
    mesh, valkey = running
    expected = [ask(mesh, prompt) for prompt in PROMPTS]
    until(lambda: all_captured(mesh), "the prompts are known")
    before = num_without_index(mesh)
    with steady_traffic(mesh, [answer.text for answer in expected]):
        valkey.kill()
        away = until(lambda: routed_without_index(mesh), "the router goes by load")
        assert away is not None
        assert (away.text, away.route["available_tokens"]) == (expected[0].text, 0)
        for kvstore in KVSTORES:
            until(partial(is_store_away, mesh, kvstore), "the kvstore says so")
        assert num_without_index(mesh) > before
        assert mesh.health()["decode_workers"] == 2
    with busy_worker(mesh) as busy:
        answers = [ask(mesh, prompt[::-1]) for prompt in PROMPTS]
    # Of who holds what the router knows nothing. It keeps away from who is busy, or counts what runs there.
    considered = [each for answer in answers for each in answer.route["considered"]]
    assert {each["held_tokens"] for each in considered} == {0}
    assert all(each["requests"] for each in considered if each["worker"] == busy)

    with steady_traffic(mesh, [answer.text for answer in expected]):
        valkey.start()
        until(lambda: all_captured(mesh), "the prompts are found again")
    # One worker after the other tells anew all that it has.
    until(lambda: all_known_to_both(mesh), "both kvstores know the same")
    after = num_without_index(mesh)
    assert all_captured(mesh)
    assert num_without_index(mesh) == after
    assert not any(is_store_away(mesh, kvstore) for kvstore in KVSTORES)
    mesh.wait_until_idle()


def num_without_index(mesh: Mesh) -> float:
    return mesh.metric("router", "pagemesh:routing_without_index_total")


def is_store_away(mesh: Mesh, kvstore: str) -> bool:
    return mesh.metric(kvstore, "pagemesh:index_store_up") == 0


def routed_without_index(mesh: Mesh) -> Answer | None:
    answer = ask(mesh, PROMPTS[0])
    return answer if answer.route["lookup"] == "failed" else None


@contextmanager
def busy_worker(mesh: Mesh) -> Iterator[str]:
    """A worker that generates a long answer."""
    raw = mesh.client().completions.with_raw_response.create(
        model=MODEL,
        prompt="Count from 1 to 100:",
        max_tokens=1500,
        temperature=0,
        stream=True,
        extra_headers={"x-pagemesh-explain": "true"},
        extra_body={"ignore_eos": True},
    )
    with raw.parse() as stream:
        next(stream)
        yield json.loads(raw.headers["x-pagemesh-route"])["worker"]
