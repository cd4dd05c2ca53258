"""Spans of routing: a child for each decision, with its reasons, and an event for what came of it."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Tracer

from pagemesh.router.path_metrics import path_of
from pagemesh.router.placer import Placement, Placer, Wanted
from pagemesh.router.route_header import considered_object
from pagemesh.router.routing.ways import Path
from pagemesh.router.traced.recorded import count
from pagemesh.router.traced.submitting import TracedSession
from pagemesh.rpc.spans import part_span
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.spans import Attributes
from pagemesh.v1 import types_pb2


class TracedPlacer:
    """A `Placer` that the present span is told of."""

    def __init__(self, inner: Placer, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    async def place(self, wanted: Wanted) -> Placement:
        with part_span(self._tracer, names.ROUTE) as span:
            placement = await self._inner.place(wanted)
            if not span.is_recording():
                return placement
            span.set_attributes(_decision(placement))
        facts, request = placement.route.decode.facts, trace.get_current_span()
        if wanted.arithmetic not in (None, facts.arithmetic):
            request.add_event(
                names.ARITHMETIC_CHANGED,
                {
                    names.WORKER: facts.worker_id,
                    names.ARITHMETIC_BEFORE: wanted.arithmetic or "",
                    names.ROUTE_ARITHMETIC: facts.arithmetic,
                },
            )
            count(request, {names.ARITHMETIC_CHANGES: 1})
        session = TracedSession(placement.session, facts.worker_id, request, self._tracer)
        return placement._replace(session=session)

    def place_beside(self, placement: Placement) -> Placement:
        """See `Placer`. What that one's session tells of its requests, it tells of this one."""
        return self._inner.place_beside(placement)

    def on_answer(self, num_tokens: int) -> None:
        self._inner.on_answer(num_tokens)

    def on_kv(self, placement: Placement, outcome: types_pb2.KvOutcome) -> None:
        self._inner.on_kv(placement, outcome)
        span = trace.get_current_span()
        if placement.query is None or not span.is_recording():
            return
        span.add_event(names.KV_READY, _outcome(placement, outcome))
        decision = placement.decision
        count(
            span,
            {
                names.PREFIX_AVAILABLE: decision.num_available_tokens,
                names.PREFIX_CAPTURED: decision.num_captured_tokens,
                names.PREFIX_DELIVERED: outcome.cached_token_count,
            },
        )


def _decision(placement: Placement) -> Attributes:
    route, reasons = placement.route, placement.decision.reasons
    plan = route.plan
    told: dict[str, str | int | float] = {
        names.ROUTE_POLICY: reasons.policy,
        names.ROUTE_WORKER: route.decode.worker_id,
        names.ROUTE_PATH: (Path.LOCAL if plan is None else plan.path).value,
        names.ROUTE_HELD: route.decode.num_held_tokens,
        names.ROUTE_CONSIDERED: _json([considered_object(each) for each in reasons.considered]),
        names.PREFIX_AVAILABLE: placement.decision.num_available_tokens,
        names.PREFIX_CAPTURED: placement.decision.num_captured_tokens,
    }
    if route.decode.facts.arithmetic:
        told[names.ROUTE_ARITHMETIC] = route.decode.facts.arithmetic
    if reasons.refused:
        told[names.ROUTE_REFUSED] = _json(dict(reasons.refused))
    if placement.query is not None:
        told[names.PREFIX_LOOKUP] = placement.query.lookup.value
    if route.prefill is not None:
        told[names.ROUTE_PREFILL] = route.prefill.worker_id
    if plan is not None and plan.source is not None:
        told[names.ROUTE_SOURCE] = plan.source.worker_id
    if plan is not None and plan.predicted_seconds:
        told[names.ROUTE_PREDICTED] = plan.predicted_seconds
    return told


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _outcome(placement: Placement, outcome: types_pb2.KvOutcome) -> Attributes:
    path, took = path_of(outcome), outcome.time_to_ready
    plan = placement.route.plan
    told: dict[str, str | int | float] = {
        names.ROUTE_WORKER: placement.route.decode.worker_id,
        names.ROUTE_SECONDS: took.seconds + took.nanos / 1e9,
        names.PREFIX_AVAILABLE: placement.decision.num_available_tokens,
        names.PREFIX_CAPTURED: placement.decision.num_captured_tokens,
        names.PREFIX_DELIVERED: outcome.cached_token_count,
    }
    if path is not None:
        told[names.ROUTE_PATH] = path.value
    if plan is not None and plan.predicted_seconds:
        told[names.ROUTE_PREDICTED] = plan.predicted_seconds
    return told
