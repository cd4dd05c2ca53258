"""How many prompt tokens some cache held, how many the plan reached, and how many came of it."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pagemesh.router.path_metrics import path_of
from pagemesh.router.routing.decision import Decision
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import routing as declared
from pagemesh.telemetry.metrics.registry import ModelMetrics
from pagemesh.telemetry.metrics.requests import PREFIX_CACHE_HITS, PREFIX_CACHE_QUERIES
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
        of_model = ModelMetrics(metrics, model_name)
        self._queried = of_model.counters(declared.PREFIX_TOKENS_QUERIED)
        self._delivered = of_model.counters(declared.PREFIX_TOKENS_DELIVERED)
        self._available = of_model.counters(declared.PREFIX_TOKENS_AVAILABLE)
        self._captured = of_model.counters(declared.PREFIX_TOKENS_CAPTURED)
        self._queries = of_model.counter(PREFIX_CACHE_QUERIES)
        self._hits = of_model.counter(PREFIX_CACHE_HITS)

    def on_kv(self, query: PrefixQuery, decision: Decision, outcome: types_pb2.KvOutcome) -> None:
        """The first token and the KV in front of it are there, or the embedding."""
        path = path_of(outcome)
        if path is None:
            return
        num_tokens, num_cached = query.num_prompt_tokens, outcome.cached_token_count
        self._queries.inc(num_tokens)
        self._hits.inc(num_cached)
        self._queried[path.value, query.lookup.value].inc(num_tokens)
        self._delivered[path.value, query.lookup.value].inc(num_cached)
        if query.lookup is Lookup.ANSWERED:
            self._available[path.value,].inc(decision.num_available_tokens)
            self._captured[path.value,].inc(decision.num_captured_tokens)
