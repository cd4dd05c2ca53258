"""What the router makes of what workers told the kvstore."""

from __future__ import annotations

import math
import pathlib

import pytest

from pagemesh.core.load import PrefillRate
from pagemesh.errors import UnavailableError
from pagemesh.membership.directory import Directory
from pagemesh.router.parity import Parity
from pagemesh.router.routing.candidate import Role, WorkerFacts
from pagemesh.router.routing.cost import Link
from pagemesh.router.session_pool import SessionPool
from pagemesh.router.workers import Workers
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.builders import make_worker
from tests.unit.router.routing_builders import LAYOUT

DEMO = pathlib.Path(__file__).resolve().parents[3] / "models/demo"
PREFILL, DECODE = types_pb2.WORKER_ROLE_PREFILL, types_pb2.WORKER_ROLE_DECODE
LOAD = types_pb2.WorkerLoad(
    running_request_count=2,
    waiting_request_count=3,
    queued_request_count=1,
    free_block_count=9,
    pending_prefill_token_count=70,
    preemption_count=4,
    swap_block_count=6,
    used_swap_block_count=5,
    prefill_rate=types_pb2.PrefillRate(seconds_per_token=0.5, step_token_count=512),
    links=[
        types_pb2.LinkRate(worker_id="d", bytes_per_second=1e9, latency_seconds=0.25),
        types_pb2.LinkRate(worker_id="odd", bytes_per_second=math.nan, latency_seconds=0.25),
    ],
)

CANARY = bytes.fromhex("38243275b7dd45c498e30ec7a2a98c57")
"""Digest of what worker and router name the canary's blocks, for the model "f" and this arithmetic."""


@pytest.fixture
def directory() -> Directory:
    return Directory("127.0.0.1:1")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(DEMO)


@pytest.fixture
def workers(directory: Directory, tokenizer: Tokenizer) -> Workers:
    parity = Parity({"demo": tokenizer})
    parity.follow(directory)
    return Workers("demo", directory, SessionPool(), parity)


def join(
    directory: Directory,
    worker_id: str,
    role: types_pb2.WorkerRole.ValueType,
    model_name: str = "demo",
    canary: bytes = CANARY,
) -> None:
    info = make_worker(worker_id, epoch=7, address=f"{worker_id}:1", fingerprint="f")
    info.role, info.model_name = role, model_name
    info.arithmetic = "cpu-fma-float32"
    info.kv_layout.kv_head_count, info.kv_layout.head_dim = 1, 2
    info.canary.version, info.canary.block_digest = 1, canary
    directory._roster.join(info)
    directory._roster.report_load(worker_id, LOAD)


def facts(workers: Workers) -> dict[str, WorkerFacts]:
    return {found.worker_id: found for found in workers.facts()}


def test_facts_are_what_a_worker_said(directory: Directory, workers: Workers) -> None:
    join(directory, "p", PREFILL)
    found = facts(workers)
    assert found == {
        "p": WorkerFacts(
            worker_id="p",
            role=Role.PREFILL,
            address="p:1",
            epoch=7,
            model_name="demo",
            model_fingerprint="f",
            layout=LAYOUT,
            block_naming=CANARY,
            arithmetic="cpu-fma-float32",
            max_model_len=2048,
            max_num_seqs=8,
            num_blocks=1000,
            num_free_blocks=9,
            reported_at=found["p"].reported_at,
            num_running=2,
            num_waiting=3,
            num_queued=1,
            num_preemptions=4,
            num_swap_blocks=6,
            num_used_swap_blocks=5,
            prefill_rate=PrefillRate(seconds_per_token=0.5, num_tokens_per_step=512),
            num_pending_tokens=70,
            links={"d": Link(1e9, 0.25)},
        )
    }


def test_a_worker_that_names_blocks_otherwise_is_degraded(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "p", PREFILL, canary=b"another")
    found = facts(workers)["p"]
    assert (found.is_degraded, found.block_naming) == (True, b"another")


def test_facts_are_made_anew_only_for_a_worker_that_said_something(
    directory: Directory, workers: Workers
) -> None:
    for worker_id in ("d", "e"):
        join(directory, worker_id, DECODE)
    before = facts(workers)
    directory._roster.report_load("d", types_pb2.WorkerLoad(running_request_count=7))
    after = facts(workers)
    assert after["e"] is before["e"]
    assert (before["d"].num_running, after["d"].num_running) == (2, 7)
    directory._roster.leave("e")
    assert facts(workers).keys() == {"d"}


def test_a_decode_worker_without_a_session_cannot_be_reached_but_a_prefill_worker_can(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "d", DECODE)
    join(directory, "p", PREFILL)
    assert workers.closed() == ({"d"}, set())
    assert workers.reachable(Role.DECODE) == []
    assert [worker.worker_id for worker in workers.reachable(Role.PREFILL)] == ["p"]


def test_workers_of_other_models_are_told_of_only_if_they_can_exchange_kv(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "p", PREFILL, model_name="other")
    join(directory, "d", DECODE, model_name="other")
    assert facts(workers) == {}
    assert workers.reachable(Role.PREFILL) == []
    assert workers.reported_load() == (0, 0, 0)
    join(directory, "e", DECODE)
    assert facts(workers).keys() == {"p", "d", "e"}


def test_the_load_is_that_of_all_decode_workers_known(
    directory: Directory, workers: Workers
) -> None:
    for worker_id in ("d", "e"):
        join(directory, worker_id, DECODE)
    join(directory, "p", PREFILL)
    assert workers.reported_load() == (4, 6, 2)
    assert workers.reported_load().num_deferred == 4
    assert [each.worker_id for each in workers.decoders()] == ["d", "e"]


def test_the_context_of_a_worker_is_known_while_it_cannot_be_reached(
    directory: Directory, workers: Workers
) -> None:
    with pytest.raises(UnavailableError, match="no decode worker for the model 'demo'") as caught:
        workers.require_max_model_len()
    assert caught.value.reason == "NO_WORKER"
    join(directory, "d", DECODE)
    assert workers.max_model_len() is None
    assert workers.require_max_model_len() == make_worker("d").max_model_len
