"""A receiver of OpenTelemetry's spans, as a collector is one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class ReceivedSpan:
    """A span with its attributes as plain values."""

    span: Span
    resource: dict[str, Any]

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def span_id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent_id(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return values(self.span.attributes)

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return [(event.name, values(event.attributes)) for event in self.span.events]


def values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


class TraceReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what is exported to it, unless it refuses; with `gate` unset, it answers nobody."""

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[ReceivedSpan] = []
        self.gate = threading.Event()
        self.gate.set()
        self.refuses = False
        self.num_calls = 0
        self.path = ""
        """Of the last call by HTTP."""
        self.headers: dict[str, str] = {}
        """Of the last call, by lower-case names."""

    def Export(  # noqa: N802  # the name of the RPC
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.ServicerContext,
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.headers = {key: str(value) for key, value in context.invocation_metadata()}
        if not self.takes(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused")
        return trace_service_pb2.ExportTraceServiceResponse()

    def takes(self, request: trace_service_pb2.ExportTraceServiceRequest) -> bool:
        """Keep the spans of a call, by whichever protocol; whether it did."""
        self.num_calls += 1
        self.gate.wait()
        if self.refuses:
            return False
        for resource_spans in request.resource_spans:
            resource = values(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [ReceivedSpan(span, resource) for span in scope_spans.spans]
        return True

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def running_receiver() -> Iterator[TraceReceiver]:
    """A receiver on a loopback port."""
    receiver = TraceReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.stop(None).wait()


@contextmanager
def running_http_receiver() -> Iterator[TraceReceiver]:
    """Likewise one that takes OTLP by HTTP, at any path."""
    receiver = TraceReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            receiver.path = self.path
            receiver.headers = {key.lower(): value for key, value in self.headers.items()}
            message = trace_service_pb2.ExportTraceServiceRequest.FromString(self._body())
            self.send_response(200 if receiver.takes(message) else 400, "as a test wants it")
            self.send_header("content-length", "0")
            self.end_headers()

        def _body(self) -> bytes:
            length = self.headers.get("content-length")
            if length is not None:
                return self.rfile.read(int(length))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
