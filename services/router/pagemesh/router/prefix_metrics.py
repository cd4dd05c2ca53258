"""How many prompt tokens some cache held, how many the plan reached, and how many came of it."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pagemesh.router.path_metrics import path_of
from pagemesh.router.routing.decision import Decision
from pagemesh.telemetry import metrics as declared
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2


class Lookup(enum.Enum):
    """What came of asking the index for a prompt."""

    ANSWERED = "answered"

    FAILED = "failed"
    """Refused, or no answer in time: what was available is not known."""

    SKIPPED = "skipped"
    """Not asked, as it does not matter for the decision."""


class PrefixQuery(NamedTuple):
    """A prompt that caches are asked for."""

    num_prompt_tokens: int
    lookup: Lookup


class PrefixMetrics:
    """Told of each prompt once, when its KV is there. Prompts that never got that far are in no number."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self._model_name = model_name
        self._queried = metrics.counter(declared.PREFIX_TOKENS_QUERIED)
        self._delivered = metrics.counter(declared.PREFIX_TOKENS_DELIVERED)
        self._available = metrics.counter(declared.PREFIX_TOKENS_AVAILABLE)
        self._captured = metrics.counter(declared.PREFIX_TOKENS_CAPTURED)

    def on_kv(self, query: PrefixQuery, decision: Decision, outcome: types_pb2.KvOutcome) -> None:
        """The first token and the KV in front of it are there, or the embedding."""
        path = path_of(outcome)
        if path is None:
            return
        labels = self._model_name, path.value
        self._queried.labels(*labels, query.lookup.value).inc(query.num_prompt_tokens)
        self._delivered.labels(*labels, query.lookup.value).inc(outcome.cached_token_count)
        if query.lookup is Lookup.ANSWERED:
            self._available.labels(*labels).inc(decision.num_available_tokens)
            self._captured.labels(*labels).inc(decision.num_captured_tokens)
