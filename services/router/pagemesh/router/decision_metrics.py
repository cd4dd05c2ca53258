"""How the router came to its decisions: what the index said and when, how long it took, what was chosen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pagemesh.router.routing.decision import Decision
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import routing as declared
from pagemesh.telemetry.metrics.registry import ModelMetrics


class DecisionMetrics:
    """Told of every lookup and decision of one model's requests."""

    def __init__(self, metrics: Metrics, model_name: str, policy: str) -> None:
        decisions = ModelMetrics(metrics, model_name).counters(declared.ROUTING_DECISIONS)
        self._decisions = {name: decisions[policy, name] for name in ("most", "less", "none")}
        self._nobody = decisions[policy, "nobody"]
        self._seconds = metrics.histogram(declared.ROUTING_SECONDS)
        lookups = metrics.histogram(declared.LOOKUP_SECONDS)
        self._answered, self._failed = lookups.labels("answered"), lookups.labels("failed")
        self._without_index = metrics.counter(declared.ROUTING_WITHOUT_INDEX)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Around one decision."""
        started_at = time.perf_counter()
        yield
        self._seconds.observe(time.perf_counter() - started_at)

    def on_lookup(self, seconds: float, *, is_answered: bool) -> None:
        """The index was asked for a prompt, under one of its namings."""
        if is_answered:
            self._answered.observe(seconds)
        else:
            self._failed.observe(seconds)
            self._without_index.inc()

    def on_decision(self, decision: Decision | None) -> None:
        """Where a request goes; None when nobody can take it."""
        if decision is None:
            self._nobody.inc()
            return
        available, captured = decision.num_available_tokens, decision.num_captured_tokens
        outcome = "none" if not available else "most" if captured >= available else "less"
        self._decisions[outcome].inc()
