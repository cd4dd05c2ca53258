"""What came of comparing the index with what the workers themselves say."""

from __future__ import annotations

from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import index as declared


class DigestMetrics:
    """Counts comparisons, differences, and the blocks about which the index was wrong."""

    def __init__(self, metrics: Metrics) -> None:
        self._digests = metrics.counter(declared.INDEX_DIGESTS)
        self._divergences = metrics.counter(declared.INDEX_DIVERGENCES)
        wrong = metrics.counter(declared.INDEX_DIVERGED_BLOCKS)
        self._missing, self._surplus = wrong.labels("missing"), wrong.labels("surplus")

    def on_digest(self, *, agrees: bool) -> None:
        """A worker's digest was compared with the index."""
        self._digests.inc()
        if not agrees:
            self._divergences.inc()

    def on_measured(self, num_missing: int, num_surplus: int) -> None:
        """A snapshot came behind a difference: what the worker held and the index did not know, and the reverse."""
        self._missing.inc(num_missing)
        self._surplus.inc(num_surplus)
