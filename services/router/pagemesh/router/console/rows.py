"""Workers and requests as the page and `GET /mesh` show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pagemesh.membership.roster import WorkerState, arithmetic_classes, describe_mixture
from pagemesh.messages import rate_from_proto
from pagemesh.router.console.request_log import Place, RequestRecord
from pagemesh.router.parity import Degraded
from pagemesh.router.roles import ROLES
from pagemesh.router.route_header import chosen_object, considered_object
from pagemesh.router.session import WorkerSession
from pagemesh.v1 import types_pb2

_MAX_REFUSED: Final = 16


def worker_row(
    worker: WorkerState, session: WorkerSession | None, degraded: Degraded | None, now: float
) -> dict[str, Any]:
    """A worker as it last described itself, and how the router stands with it."""
    info, load = worker.info, worker.load
    reported = worker.reported_at is not None
    return {
        "id": worker.worker_id,
        "role": ROLES[worker.role].value,
        "model": info.model_name,
        "address": worker.address,
        "arithmetic": info.arithmetic,
        "state": _state(worker, session),
        "degraded": None
        if degraded is None
        else {"reason": degraded.difference.value, "advice": degraded.advice},
        "running": load.running_request_count,
        "waiting": load.waiting_request_count,
        "max_num_seqs": info.max_num_seqs,
        "pending_prefill_tokens": load.pending_prefill_token_count,
        "used_blocks": max(0, info.block_count - load.free_block_count) if reported else 0,
        "blocks": info.block_count,
        "block_size": info.kv_layout.block_size,
        "max_model_len": info.max_model_len,
        "prefill_tokens_per_second": _prefill_speed(load),
        "reported_seconds_ago": None
        if worker.reported_at is None
        else round(max(0.0, now - worker.reported_at), 3),
    }


def mixed_models(workers: Iterable[WorkerState]) -> list[dict[str, Any]]:
    """Models whose workers compute with several kinds of arithmetic, and what that leads to."""
    by_model: dict[str, list[types_pb2.WorkerInfo]] = {}
    for worker in workers:
        by_model.setdefault(worker.info.model_name, []).append(worker.info)
    mixed = []
    for model, infos in sorted(by_model.items()):
        classes = arithmetic_classes(infos)
        what = describe_mixture(model, classes)
        if what is not None:
            mixed.append({"model": model, "classes": classes, "what": f"{what}."})
    return mixed


def _state(worker: WorkerState, session: WorkerSession | None) -> str:
    if worker.role == types_pb2.WORKER_ROLE_DECODE:
        if session is not None and session.is_draining:
            return "draining"
        if session is None or not session.is_live:
            return "unreachable"
    # The router still uses what the kvstore told it before it went away.
    return "ready" if worker.live else "unconfirmed"


def _prefill_speed(load: types_pb2.WorkerLoad) -> float | None:
    """Prompt tokens per second in a full step; None before any was measured."""
    rate = rate_from_proto(load.prefill_rate)
    seconds = rate.queue_seconds(rate.num_tokens_per_step)
    return round(rate.num_tokens_per_step / seconds, 1) if seconds else None


def request_row(record: RequestRecord, seconds_so_far: float) -> dict[str, Any]:
    """A request: numbers, ids of workers and reasons."""
    outcome = record.outcome
    usage = record.usage_so_far() if outcome is None else outcome.usage
    return {
        "number": record.number,
        "id": record.request_id,
        "kind": record.kind,
        "model": record.model_name,
        "began_at": round(record.began_at, 3),
        "end": None if outcome is None else outcome.end,
        "error": None if outcome is None else outcome.error,
        "prompts": record.num_prompts,
        "choices": record.num_choices,
        "prompt_tokens": usage.num_prompt_tokens,
        "cached_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_completion_tokens,
        "time_to_first_token": None if outcome is None else _rounded(outcome.time_to_first_token),
        "seconds": _rounded(seconds_so_far if outcome is None else outcome.seconds),
        "decisions": record.num_places,
        "places": [_place(place) for place in record.places],
    }


def _place(place: Place) -> dict[str, Any]:
    reasons, delivery = place.explanation.decision.reasons, place.delivery
    return {
        **chosen_object(place.explanation),
        "retry": place.is_retry,
        "taken_way": None if delivery is None else delivery.path.value,
        "delivered_tokens": None if delivery is None else delivery.num_cached_tokens,
        "ready_seconds": None if delivery is None else _rounded(delivery.seconds),
        "considered": [considered_object(each) for each in reasons.considered],
        "refused": dict(list(reasons.refused.items())[:_MAX_REFUSED]),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.4g}")
