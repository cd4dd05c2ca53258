"""Whether and how a worker's requests are traced: decided once, when it starts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

from pagemesh.config import TracesConfig
from pagemesh.rpc.channels import Behavior
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.tracer import start_tracer
from pagemesh.v1 import prefill_pb2

if TYPE_CHECKING:
    from pagemesh.telemetry.otlp import OtlpTracer
    from pagemesh.worker.interfaces import Importer, Sender


class Tracing:
    """Nothing is traced: all parts are used as they are."""

    tracer: OtlpTracer | None = None
    """What makes the spans of the process; None without any."""

    def around(self, method: str) -> AbstractContextManager[object]:
        """What a call of a method is run in."""
        return nullcontext()

    def sender(self, sender: Sender, worker_id: str) -> Sender:
        """The one to use, of this worker."""
        return sender

    def prefill(
        self, behavior: Behavior[prefill_pb2.PrefillRequest]
    ) -> Behavior[prefill_pb2.PrefillRequest]:
        """What serves Prefill."""
        return behavior

    def importer(self, importer: Importer) -> Importer:
        """The one to use."""
        return importer

    def close(self) -> None:
        """Send what is left. May block for two seconds; idempotent."""


def start_tracing(
    config: TracesConfig, role: Literal["prefill", "decode"], metrics: Metrics
) -> Tracing:
    """As the settings say; what spans need is loaded only where they are wanted."""
    tracer = start_tracer(config, role, metrics)
    if tracer is None:
        return Tracing()
    from pagemesh.worker.traced.tracing import SpanTracing

    return SpanTracing(tracer)
