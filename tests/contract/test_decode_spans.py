"""The span of a request of a session ends once, however the request does, and says how that was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import duration_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pagemesh.decode.messages import OutputBuffer, parse_submit
from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.request import DecodeRequest
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.v1 import decode_pb2, types_pb2
from tests.fakes.engine import FakeEngine
from tests.support.waiting import wait_until
from tests.support.workers import running_worker

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FINISH_REASONS = "gen_ai.response.finish_reasons"


def until_its_end(request: DecodeRequest) -> None:
    """Whatever ends it comes by itself."""


def twice(request: DecodeRequest) -> None:
    request.cancel()
    request.cancel()


def submit(traceparent: str, *, timeout: float = 20.0, max_tokens: int = 400) -> decode_pb2.Submit:
    message = decode_pb2.Submit(
        handle=1,
        request_id="client-1",
        prompt_token_ids=range(10, 30),
        sampling=types_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        traceparent=traceparent,
    )
    message.timeout.CopyFrom(duration_pb2.Duration(nanos=int(timeout % 1 * 1e9)))
    message.timeout.seconds = int(timeout)
    return message


async def spans_of(
    message: decode_pb2.Submit, end: Callable[[DecodeRequest], None]
) -> list[Mapping[str, Any]]:
    """Attributes of the spans that have ended when the request has."""
    exporter, ended = InMemorySpanExporter(), list[int]()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with running_worker(DECODE_ROLE, FakeEngine(seconds_per_token=0.01)) as decode:
        worker = replace(decode.worker, tracer=provider.get_tracer("test"))
        prefiller = RemotePrefiller(worker)
        submission = parse_submit(message, "r", None)
        request = DecodeRequest(worker, prefiller, OutputBuffer(), submission, ended.append)
        request.start()
        assert exporter.get_finished_spans() == ()
        end(request)
        await wait_until(lambda: ended == [1], "the end of the request")
        await prefiller.close()
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} <= {"decode"}
    return [dict(span.attributes or {}) for span in spans]


@pytest.mark.parametrize(
    ("end", "reasons", "error"),
    [
        pytest.param(twice, ("cancelled",), None, id="cancelled"),
        pytest.param(DecodeRequest.abandon, None, "CANCELLED", id="abandoned"),
        pytest.param(DecodeRequest.move, ("moved",), None, id="moved"),
    ],
)
async def test_a_request_that_is_ended_ends_its_span(
    end: Callable[[DecodeRequest], None], reasons: tuple[str, ...] | None, error: str | None
) -> None:
    (told,) = await spans_of(submit(SAMPLED), end)
    assert (told.get(FINISH_REASONS), told.get("error.type")) == (reasons, error)
    assert told["gen_ai.latency.e2e"] > 0


async def test_a_request_that_ends_by_itself_ends_its_span(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (told,) = await spans_of(submit(SAMPLED, max_tokens=3), until_its_end)
    assert (told[FINISH_REASONS], told["gen_ai.usage.output_tokens"]) == (("length",), 3)
    (told,) = await spans_of(submit(SAMPLED, timeout=0.1), until_its_end)
    assert (told[FINISH_REASONS], told["error.type"]) == (("error",), "DEADLINE_EXCEEDED")
    # The SDK says so when one is told something, or ended, behind its end.
    assert [record for record in caplog.records if "opentelemetry" in record.name] == []


async def test_a_request_that_nobody_records_has_no_span() -> None:
    assert await spans_of(submit(f"{SAMPLED[:-1]}0", max_tokens=2), until_its_end) == []
    assert await spans_of(submit("", max_tokens=2), until_its_end) == []
