"""All parts of a worker that spans are told of, wrapped."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pagemesh.rpc.call_spans import ServedSpans
from pagemesh.rpc.channels import Behavior
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.otlp import OtlpTracer
from pagemesh.v1 import prefill_pb2
from pagemesh.worker.interfaces import Importer, Sender
from pagemesh.worker.kv_methods import FETCH, PREFILL
from pagemesh.worker.traced.importing import TracedImporter
from pagemesh.worker.traced.prefilling import traced_prefill
from pagemesh.worker.traced.sending import TracedSender
from pagemesh.worker.tracing import Tracing


class SpanTracing(Tracing):
    """A span for each stream of KV, at both of its ends."""

    def __init__(self, tracer: OtlpTracer) -> None:
        self.tracer = tracer
        served = {PREFILL.path: names.PREFILL, FETCH.path: names.FETCH}
        self._calls = ServedSpans(tracer, served)

    def around(self, method: str) -> AbstractContextManager[object]:
        return self._calls.around(method)

    def sender(self, sender: Sender, worker_id: str) -> Sender:
        return TracedSender(sender, worker_id)

    def prefill(
        self, behavior: Behavior[prefill_pb2.PrefillRequest]
    ) -> Behavior[prefill_pb2.PrefillRequest]:
        return traced_prefill(behavior)

    def importer(self, importer: Importer) -> Importer:
        assert self.tracer is not None, "it was given one"
        return TracedImporter(importer, self.tracer)

    def close(self) -> None:
        assert self.tracer is not None, "it was given one"
        self.tracer.close()
