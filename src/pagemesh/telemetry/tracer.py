"""Whether a process makes spans: decided once, when it starts. OpenTelemetry's SDK is loaded only where they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Literal, NamedTuple

from opentelemetry.trace import NoOpTracer, Tracer

from pagemesh.config import TracesConfig
from pagemesh.config.environment import traces_headers_of_environment
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.process import SPANS_DROPPED


class Traces(NamedTuple):
    """What makes the spans of a process."""

    tracer: Tracer
    close: Callable[[], None]
    """Sends what is left. May block for two seconds; idempotent."""


def start_traces(
    config: TracesConfig,
    service: Literal["router", "prefill", "decode", "kvstore"],
    metrics: Metrics,
) -> Traces:
    """As the settings say: with an endpoint its spans are exported, else nothing comes of them. To be closed."""
    endpoint = config.endpoint
    if endpoint is None:
        return Traces(NoOpTracer(), lambda: None)
    from pagemesh.telemetry.otlp import OtlpTraces, Receiver

    lost = metrics.counter(SPANS_DROPPED)
    receiver = Receiver(endpoint, config.protocol, traces_headers_of_environment())
    name = f"pagemesh-{service}"
    traces = OtlpTraces(receiver, name, version("pagemesh"), config.share, on_lost=lost.inc)
    return Traces(traces.tracer, traces.close)
