"""Whether a process makes spans: decided once, when it starts. What they need is loaded only where they are wanted."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from pagemesh.config import TracesConfig
from pagemesh.config.environment import traces_headers_of_environment
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.process import SPANS_DROPPED

if TYPE_CHECKING:
    from pagemesh.telemetry.otlp import OtlpTracer


def start_tracer(
    config: TracesConfig,
    service: Literal["router", "prefill", "decode", "kvstore"],
    metrics: Metrics,
) -> OtlpTracer | None:
    """What makes the spans of this process; None where nobody wants any. To be closed."""
    endpoint = config.endpoint
    if endpoint is None:
        return None
    from pagemesh.telemetry.otlp import OtlpTracer
    from pagemesh.telemetry.span_export import Receiver

    lost = metrics.counter(SPANS_DROPPED)
    receiver = Receiver(endpoint, config.protocol, traces_headers_of_environment())
    name = f"pagemesh-{service}"
    return OtlpTracer(receiver, name, version("pagemesh"), config.share, on_lost=lost.inc)
