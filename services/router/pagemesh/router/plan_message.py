"""What a decode worker is told of a request besides what the client asked for: the prefill plan, and the trace."""

from __future__ import annotations

from opentelemetry.trace import Span

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.telemetry.spans import TRACEPARENT, TRACESTATE, write_trace
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2


def plan_to_proto(plan: PrefillPlan) -> decode_pb2.PrefillPlan | None:
    """None when the decode worker computes the prompt by itself."""
    if not plan.workers and plan.source is None:
        return None
    message = decode_pb2.PrefillPlan(
        workers=map(_peer, plan.workers), overrule_seconds=plan.overrule_seconds
    )
    if plan.source is not None:
        message.source.CopyFrom(
            kv_transfer_pb2.KvSource(
                worker=_peer(plan.source), block_count=plan.source.num_held_blocks
            )
        )
    return message


def _peer(worker: Candidate) -> types_pb2.PeerWorker:
    return types_pb2.PeerWorker(
        worker_id=worker.worker_id, address=worker.facts.address, epoch=worker.facts.epoch
    )


def tell_trace(span: Span, submit: decode_pb2.Submit) -> None:
    """Have the worker's spans be below this one."""
    told = write_trace(span)
    submit.traceparent, submit.tracestate = told.get(TRACEPARENT, ""), told.get(TRACESTATE, "")
