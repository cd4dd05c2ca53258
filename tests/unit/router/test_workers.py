"""What the router makes of what workers told the kvstore."""

from __future__ import annotations

import math
import pathlib

import pytest

from pagemesh.engine.prefill_rate import PrefillRate
from pagemesh.errors import UnavailableError
from pagemesh.membership.directory import Directory
from pagemesh.router.parity import Parity
from pagemesh.router.routing.candidate import Candidate, LinkUse, Role
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.in_flight import InFlight
from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.route import Route
from pagemesh.router.routing.ways import Claim, Path
from pagemesh.router.session_pool import SessionPool
from pagemesh.router.workers import Workers
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import types_pb2
from tests.fakes.clock import FakeClock
from tests.unit.kvstore.builders import make_worker
from tests.unit.router.routing_builders import LAYOUT, make_candidate

DEMO = pathlib.Path(__file__).resolve().parents[3] / "models/demo"
PREFILL, DECODE = types_pb2.WORKER_ROLE_PREFILL, types_pb2.WORKER_ROLE_DECODE
LOAD = types_pb2.WorkerLoad(
    running_request_count=2,
    waiting_request_count=3,
    pending_prefill_token_count=70,
    prefill_rate=types_pb2.PrefillRate(seconds_per_token=0.5, step_token_count=512),
    links=[
        types_pb2.LinkRate(worker_id="d", bytes_per_second=1e9, latency_seconds=0.25),
        types_pb2.LinkRate(worker_id="odd", bytes_per_second=math.nan, latency_seconds=0.25),
    ],
)

CANARY = bytes.fromhex("69094b584354bc284a7f2ee1915492b8")
"""Digest of what worker and router name the canary's blocks, for the model "f"."""


@pytest.fixture
def directory() -> Directory:
    return Directory("127.0.0.1:1")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(DEMO)


@pytest.fixture
def workers(directory: Directory, tokenizer: Tokenizer) -> Workers:
    parity = Parity("demo", tokenizer)
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
    info.kv_layout.kv_head_count, info.kv_layout.head_dim = 1, 2
    info.canary.version, info.canary.block_digest = 1, canary
    directory._roster.join(info)
    directory._roster.report_load(worker_id, LOAD)


def candidates(workers: Workers, in_flight: InFlight, **held: int) -> dict[str, Candidate]:
    return {found.worker_id: found for found in workers.candidates(held, in_flight)}


def test_a_candidate_is_what_its_worker_said_and_what_was_sent_there(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "p", PREFILL)
    in_flight = InFlight(FakeClock())
    claims = (Claim("p", None, 1.5), Claim("p", "d", 2.5))
    plan = PrefillPlan(Path.REMOTE, (make_candidate("p"),), claims=claims)
    for _ in range(6):
        in_flight.begin(Route(make_candidate("d"), plan))
    assert candidates(workers, in_flight, p=4) == {
        "p": Candidate(
            worker_id="p",
            role=Role.PREFILL,
            address="p:1",
            epoch=7,
            model_name="demo",
            model_fingerprint="f",
            layout=LAYOUT,
            max_model_len=2048,
            max_num_seqs=8,
            reachable=True,
            num_requests=6,
            num_held_blocks=4,
            block_naming=CANARY,
            num_running=2,
            prefill_rate=PrefillRate(seconds_per_token=0.5, num_tokens_per_step=512),
            num_pending_tokens=70,
            own_queue_seconds=1.5,
            links={"d": Link(1e9, 0.25)},
            own_transfers={"d": LinkUse(6, 2.5)},
        )
    }


def test_a_worker_that_names_blocks_otherwise_holds_nothing(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "p", PREFILL, canary=b"another")
    found = candidates(workers, InFlight(FakeClock()), p=4)["p"]
    assert (found.num_held_blocks, found.block_naming) == (0, b"another")


def test_reported_requests_count_when_they_are_more_than_this_routers(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "d", DECODE)
    assert candidates(workers, InFlight(FakeClock()))["d"].num_requests == 5


def test_a_decode_worker_without_a_session_cannot_be_reached_but_a_prefill_worker_can(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "d", DECODE)
    join(directory, "p", PREFILL)
    found = candidates(workers, InFlight(FakeClock()))
    assert (found["d"].reachable, found["p"].reachable) == (False, True)
    assert workers.reachable(Role.DECODE) == []
    assert [worker.worker_id for worker in workers.reachable(Role.PREFILL)] == ["p"]


def test_workers_of_other_models_are_candidates_only(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "p", PREFILL, model_name="other")
    join(directory, "d", DECODE, model_name="other")
    assert set(candidates(workers, InFlight(FakeClock()))) == {"p", "d"}
    assert workers.reachable(Role.PREFILL) == []
    assert workers.reported_load() == (0, 0)


def test_the_load_is_that_of_all_decode_workers_known(
    directory: Directory, workers: Workers
) -> None:
    for worker_id in ("d", "e"):
        join(directory, worker_id, DECODE)
    join(directory, "p", PREFILL)
    assert workers.reported_load() == (4, 6)


def test_no_context_is_on_offer_while_no_decode_worker_can_be_reached(
    directory: Directory, workers: Workers
) -> None:
    join(directory, "d", DECODE)
    assert workers.max_model_len() is None
    with pytest.raises(UnavailableError, match="no decode worker for the model 'demo'") as caught:
        workers.require_max_model_len()
    assert caught.value.reason == "NO_WORKER"
