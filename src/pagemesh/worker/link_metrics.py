"""Shows what was measured of the links to a worker."""

from __future__ import annotations

from pagemesh.core.load import LinkSpeed
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import transfer as declared


class LinkMetrics:
    """A pair of gauges for each sender that a `LinkMeter` remembers."""

    def __init__(self, metrics: Metrics) -> None:
        self._speed = metrics.gauge(declared.LINK_BYTES_PER_SECOND)
        self._latency = metrics.gauge(declared.LINK_LATENCY_SECONDS)

    def on_measured(self, worker_id: str, link: LinkSpeed | None) -> None:
        """A link was measured, or forgotten when there is nothing to say of it."""
        if link is None:
            self._speed.remove(worker_id)
            self._latency.remove(worker_id)
            return
        self._speed.labels(worker_id).set(link.bytes_per_second)
        self._latency.labels(worker_id).set(link.latency_seconds)
