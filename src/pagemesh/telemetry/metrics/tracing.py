"""Spans on their way to a collector."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics.specs import CounterSpec, Process, Unit

SPANS_DROPPED: Final = CounterSpec(
    name="pagemesh:spans_dropped",
    help="Spans that were recorded and that no collector took: it was away, or too slow for them.",
    unit=Unit.COUNT,
    processes=(Process.ROUTER, Process.PREFILL, Process.DECODE, Process.KVSTORE),
    only_with="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    look_at="whether the collector runs and takes so many; else sample fewer requests",
)
