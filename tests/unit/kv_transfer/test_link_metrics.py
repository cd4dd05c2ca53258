"""What is known of links is shown, and no longer than it is known."""

from __future__ import annotations

from pagemesh.core.load import LinkSpeed
from pagemesh.kv_transfer.links import LinkMetrics
from pagemesh.telemetry.metrics import Metrics


def test_a_link_is_shown_until_it_is_forgotten() -> None:
    metrics = Metrics()
    shown = LinkMetrics(metrics)

    def samples() -> list[float | None]:
        names = ("pagemesh:link_bytes_per_second", "pagemesh:link_latency_seconds")
        return [metrics.registry.get_sample_value(name, {"sender": "p"}) for name in names]

    shown.on_measured("p", LinkSpeed("p", 1e9, 0.002))
    assert samples() == [1e9, 0.002]
    shown.on_measured("p", LinkSpeed("p", 2e9, 0.001))
    assert samples() == [2e9, 0.001]
    shown.on_measured("p", None)
    assert samples() == [None, None]
