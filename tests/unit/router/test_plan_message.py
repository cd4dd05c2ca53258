"""What a decode worker is told of a plan."""

from __future__ import annotations

from pagemesh.router.plan_message import plan_to_proto
from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.ways import Path
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.unit.router.routing_builders import make_candidate, make_prefill_worker


def test_workers_and_source_are_named_with_their_epochs() -> None:
    plan = PrefillPlan(
        Path.REMOTE_PULL,
        (make_prefill_worker("p", epoch=5), make_prefill_worker("q", epoch=6)),
        make_candidate("e", epoch=7, num_held_blocks=3),
        overrule_seconds=0.25,
    )
    assert plan_to_proto(plan) == decode_pb2.PrefillPlan(
        workers=[
            types_pb2.PeerWorker(worker_id="p", address="p:1", epoch=5),
            types_pb2.PeerWorker(worker_id="q", address="q:1", epoch=6),
        ],
        source=kv_transfer_pb2.KvSource(
            worker=types_pb2.PeerWorker(worker_id="e", address="e:1", epoch=7), block_count=3
        ),
        overrule_seconds=0.25,
    )


def test_a_pull_names_no_workers() -> None:
    message = plan_to_proto(PrefillPlan(Path.PULL, source=make_candidate("e", num_held_blocks=3)))
    assert message is not None
    assert (list(message.workers), message.source.block_count) == ([], 3)


def test_a_local_prefill_needs_no_plan() -> None:
    assert (
        plan_to_proto(PrefillPlan(Path.LOCAL, predicted_seconds=0.5, overrule_seconds=0.5)) is None
    )
