"""Spans of calls: their parents, who is the present one, and what they are told of how a call ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, NoOpTracer, SpanKind, StatusCode, Tracer

from pagemesh.errors import InternalError, InvalidRequestError
from pagemesh.rpc.call_context import CallContext, bind_call, outgoing_metadata, run_for
from pagemesh.rpc.spans import ServedSpans, call_span, part_span
from pagemesh.telemetry.spans import read_trace

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
UNSAMPLED = f"{SAMPLED[:-1]}0"


@pytest.fixture
def ended() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(ended: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ended))
    return provider.get_tracer("test")


def only(ended: InMemorySpanExporter) -> ReadableSpan:
    (span,) = ended.get_finished_spans()
    return span


async def test_whoever_is_called_is_told_that_the_span_is_its_parent(
    tracer: Tracer, ended: InMemorySpanExporter
) -> None:
    bind_call(CallContext("r"), read_trace(SAMPLED, "a=1"))
    with call_span(tracer, "outer", {"a": 1}, SpanKind.CLIENT) as outer:
        with part_span(tracer, "inner") as inner:
            assert trace.get_current_span() is inner
            told = dict(outgoing_metadata())
        assert trace.get_current_span() is outer
    assert dict(outgoing_metadata())["traceparent"] == SAMPLED
    second, first = ended.get_finished_spans()
    assert (second.name, second.parent) == ("inner", outer.get_span_context())
    assert told["traceparent"].split("-")[2] == f"{inner.get_span_context().span_id:016x}"
    assert told["tracestate"] == "a=1"
    assert first.parent is not None
    assert (first.parent.trace_id, first.parent.span_id) == (int(TRACE_ID, 16), int(PARENT_ID, 16))
    assert (first.kind, first.attributes) == (SpanKind.CLIENT, {"a": 1})


@pytest.mark.parametrize(
    ("error", "told", "status"),
    [
        (InvalidRequestError("long", reason="TOO_LONG"), "TOO_LONG", StatusCode.UNSET),
        (InternalError("broken", reason="BROKEN"), "BROKEN", StatusCode.ERROR),
        (ValueError("what nobody may see"), "INTERNAL", StatusCode.ERROR),
        (asyncio.CancelledError(), "CANCELLED", StatusCode.UNSET),
        (grpc.aio.AbortError(), None, StatusCode.UNSET),
    ],
    ids=["the caller's", "ours", "a bug", "nobody waits", "told already"],
)
async def test_an_error_that_leaves_the_block_is_the_spans(
    tracer: Tracer, ended: InMemorySpanExporter, error: Any, told: str | None, status: StatusCode
) -> None:
    bind_call(CallContext(), INVALID_SPAN)
    with pytest.raises(type(error)), call_span(tracer, "outer", {}):
        raise error
    span = only(ended)
    assert span.attributes == ({} if told is None else {"error.type": told})
    assert span.status.status_code is status
    # Tracebacks quote what clients sent.
    assert span.events == ()
    assert "nobody may see" not in span.to_json()


async def test_a_served_call_has_a_span_if_its_trace_is_recorded(
    tracer: Tracer, ended: InMemorySpanExporter
) -> None:
    served = ServedSpans(tracer, {"/a/B": "b"})
    for parent, method in ((UNSAMPLED, "/a/B"), ("", "/a/B"), (SAMPLED, "/a/C")):
        bind_call(CallContext("r"), read_trace(parent))
        with served.around(method):
            assert dict(outgoing_metadata()).get("traceparent", "") == parent
    assert ended.get_finished_spans() == ()
    bind_call(CallContext("r"), read_trace(SAMPLED))
    with pytest.raises(asyncio.CancelledError), served.around("/a/B"):
        raise asyncio.CancelledError
    span = only(ended)
    assert (span.name, span.kind, span.attributes) == (
        "b",
        SpanKind.SERVER,
        {"pagemesh.request_id": "r"},
    )


async def test_without_a_sdk_the_callers_trace_goes_on() -> None:
    bind_call(CallContext("r"), read_trace(SAMPLED, "a=1"))
    tracer = NoOpTracer()
    with ServedSpans(tracer, {"/a/B": "b"}).around("/a/B"), part_span(tracer, "part") as part:
        told = dict(outgoing_metadata())
    assert not part.is_recording()
    assert told == {"x-request-id": "r", "traceparent": SAMPLED, "tracestate": "a=1"}


async def test_a_span_is_present_in_its_own_task_and_those_it_starts_alone(
    tracer: Tracer, caplog: pytest.LogCaptureFixture
) -> None:
    bind_call(CallContext(), INVALID_SPAN)
    entered, may_end = asyncio.Event(), asyncio.Event()
    seen: list[trace.Span] = []

    async def note() -> None:
        seen.append(trace.get_current_span())

    async def messages() -> AsyncGenerator[int]:
        try:
            yield 1
            await may_end.wait()
            yield 2
        finally:
            # Closed by another task, as a stream is whose caller has gone.
            seen.append(trace.get_current_span())

    async def one() -> trace.Span:
        with call_span(tracer, "one", {}) as span:
            stream = messages()
            await anext(stream)
            entered.set()
            await asyncio.create_task(note())
            await may_end.wait()
            await asyncio.create_task(stream.aclose())
            return span

    task = asyncio.create_task(one())
    await entered.wait()
    other = read_trace(SAMPLED)
    await run_for(CallContext(), other, asyncio.create_task, note())
    assert trace.get_current_span() is INVALID_SPAN
    may_end.set()
    span = await task
    assert set(seen) == {span, other}
    assert [record for record in caplog.records if "opentelemetry" in record.name] == []
