"""Spans of a router, as a receiver of OTLP gets them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from google.api.httpbody_pb2 import HttpBody
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from pagemesh.core.engine import Pooling
from pagemesh.v1 import inference_pb2, openai_pb2, types_pb2
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import Mesh, eventually, running_mesh
from tests.contract.scripted_worker import scripted
from tests.support.ports import free_port
from tests.support.trace_receiver import TraceReceiver, running_receiver

PROMPT = list(range(10, 80))
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
CHAT = {
    "messages": [{"role": "user", "content": "Say something."}],
    "max_tokens": 3,
    "temperature": 0.5,
}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceReceiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with running_receiver() as receiver:
        yield receiver


@pytest.fixture
async def mesh(receiver: TraceReceiver) -> AsyncIterator[Mesh]:
    async with running_mesh(decode=2, otlp_traces_endpoint=receiver.address) as mesh:
        yield mesh


def completion(**fields: object) -> HttpBody:
    return http_body({"prompt": PROMPT, "max_tokens": 2, **fields})


async def test_a_request_is_a_span_of_the_callers_trace(
    mesh: Mesh, receiver: TraceReceiver
) -> None:
    answer = await mesh.chat(CHAT, traceparent=SAMPLED, tracestate="a=1", x_request_id="client-7")
    assert answer.status == 200
    await eventually(lambda: len(receiver.spans) == 3)
    (request,) = receiver.named("chat demo")
    assert (request.trace_id, request.parent_id) == (TRACE_ID, PARENT_ID)
    assert request.span.kind == Span.SPAN_KIND_SERVER
    assert request.span.trace_state == "a=1"
    assert request.span.status.code == Status.STATUS_CODE_UNSET
    assert request.resource["service.name"] == "pagemesh-router"
    usage = answer.json()["usage"]
    told = request.attributes
    seconds = told.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < seconds < 10
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pagemesh",
        "gen_ai.request.model": "demo",
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "pagemesh.request_id": "client-7",
        "pagemesh.prefix.available": 0,
        "pagemesh.prefix.captured": 0,
        "pagemesh.prefix.delivered": 0,
    }


async def test_the_decision_is_a_child_and_what_came_of_it_an_event(
    mesh: Mesh, receiver: TraceReceiver
) -> None:
    await mesh.completions({"prompt": PROMPT, "max_tokens": 2})
    deadline = time.monotonic() + 10
    while max((await mesh.holders(PROMPT)).values(), default=0) < 4:
        assert time.monotonic() < deadline, "the index never knew the prompt"
        await asyncio.sleep(0.01)
    await eventually(lambda: len(receiver.spans) == 3)
    (worker_id,) = await mesh.holders(PROMPT)
    receiver.spans.clear()
    await mesh.completions({"prompt": PROMPT, "max_tokens": 2})
    await eventually(lambda: len(receiver.spans) == 3)
    (request,) = receiver.named("text_completion demo")
    (route,) = receiver.named("route")
    assert (route.trace_id, route.parent_id) == (request.trace_id, request.span_id)
    assert request.parent_id == ""
    told = route.attributes
    considered = json.loads(told.pop("pagemesh.route.considered"))
    told.pop("pagemesh.route.predicted_seconds", None)
    assert told == {
        "pagemesh.route.policy": "kv_aware",
        "pagemesh.route.worker": worker_id,
        "pagemesh.route.path": "local",
        "pagemesh.route.held_tokens": 64,
        "pagemesh.prefix.lookup": "answered",
        "pagemesh.prefix.available": 64,
        "pagemesh.prefix.captured": 64,
    }
    assert (considered[0]["worker"], considered[0]["held_tokens"]) == (worker_id, 64)
    ((name, event),) = request.events
    assert name == "kv_ready"
    assert 0 < event["pagemesh.route.seconds"] < 10
    assert (event["pagemesh.route.worker"], event["pagemesh.route.path"]) == (worker_id, "local")
    assert event["pagemesh.prefix.delivered"] == 64
    assert request.attributes["pagemesh.prefix.delivered"] == 64
    assert request.attributes["gen_ai.usage.cache_read.input_tokens"] == 64


async def test_workers_are_told_that_the_submission_is_their_parent(
    receiver: TraceReceiver,
) -> None:
    async with (
        running_mesh(decode=0, otlp_traces_endpoint=receiver.address) as mesh,
        scripted(mesh) as worker,
    ):
        metadata = (("traceparent", SAMPLED), ("tracestate", "a=1"))
        call = asyncio.create_task(read(mesh.openai.Completions(completion(), metadata=metadata)))
        await eventually(lambda: len(worker.submits) == 1)
        (submit,) = worker.submits
        length = types_pb2.FINISH_REASON_LENGTH
        worker.answer(submit, token_ids=[20, 21], finish_reason=length)
        await call
        await eventually(lambda: len(receiver.spans) == 3)
        (request,) = receiver.named("text_completion demo")
        (sent,) = receiver.named("submit")
        assert submit.traceparent == f"00-{TRACE_ID}-{sent.span_id}-01"
        assert submit.tracestate == "a=1"
        assert sent.parent_id == request.span_id
        assert sent.span.kind == Span.SPAN_KIND_CLIENT
        assert sent.attributes == {
            "pagemesh.worker": "scripted",
            "pagemesh.request_id": request.attributes["pagemesh.request_id"],
        }


async def test_a_trace_that_is_not_sampled_is_not_exported_and_goes_on_so(
    receiver: TraceReceiver,
) -> None:
    async with (
        running_mesh(decode=0, otlp_traces_endpoint=receiver.address) as mesh,
        scripted(mesh) as worker,
    ):
        for flags in ("00", "01"):
            metadata = (("traceparent", f"{SAMPLED[:-2]}{flags}"),)
            call = mesh.openai.Completions(completion(), metadata=metadata)
            reading = asyncio.create_task(read(call))
            await eventually(lambda: len(worker.submits) == 1)
            submit = worker.submits.pop()
            assert (submit.traceparent[3:35], submit.traceparent[-2:]) == (TRACE_ID, flags)
            length = types_pb2.FINISH_REASON_LENGTH
            worker.answer(submit, token_ids=[20], finish_reason=length)
            await reading
        # Spans come in the order in which they end: there was none of the first request.
        await eventually(lambda: len(receiver.spans) == 3)
        assert {span.parent_id for span in receiver.named("text_completion demo")} == {PARENT_ID}
        assert len(receiver.named("text_completion demo")) == 1


async def test_streams_and_the_typed_interface_are_traced_likewise(
    mesh: Mesh, receiver: TraceReceiver
) -> None:
    await read(mesh.openai.Completions(completion(stream=True, n=2)))
    await eventually(lambda: len(receiver.spans) == 4)
    assert len(receiver.named("submit")) == 2
    (request,) = receiver.named("text_completion demo")
    assert request.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert request.attributes["gen_ai.request.choice.count"] == 2
    assert request.attributes["gen_ai.usage.output_tokens"] == 4
    receiver.spans.clear()
    typed = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=PROMPT))
    typed.sampling.max_tokens = 2
    async for _ in mesh.inference.Generate(typed):
        pass
    await eventually(lambda: len(receiver.spans) == 3)
    (request,) = receiver.named("text_completion demo")
    assert request.attributes["gen_ai.usage.input_tokens"] == 70


async def test_embeddings_are_traced(receiver: TraceReceiver) -> None:
    pooling = Pooling("last", normalize=False)
    async with running_mesh(otlp_traces_endpoint=receiver.address, pooling=pooling) as mesh:
        await read(mesh.openai.Embeddings(http_body({"input": [PROMPT, PROMPT[:20]]})))
        await eventually(lambda: len(receiver.spans) == 5)
    (request,) = receiver.named("embeddings demo")
    assert request.attributes["gen_ai.usage.input_tokens"] == 90
    assert len(receiver.named("route")) == 2
    assert len(request.events) == 2


async def test_what_goes_wrong_is_said_and_only_the_servers_faults_are_errors(
    receiver: TraceReceiver,
) -> None:
    async with running_mesh(decode=0, otlp_traces_endpoint=receiver.address) as mesh:
        assert (await mesh.chat({**CHAT, "model": "other"})).status == 404
        assert (await mesh.chat(CHAT)).status == 503
        await eventually(lambda: len(receiver.spans) == 2)
        first, second = receiver.spans
        assert first.attributes["error.type"] == "MODEL_NOT_FOUND"
        assert first.span.status.code == Status.STATUS_CODE_UNSET
        assert second.attributes["error.type"] == "NO_WORKER"
        assert second.span.status.code == Status.STATUS_CODE_ERROR
        assert second.span.status.message.startswith("no decode worker for the model 'demo'")
        receiver.spans.clear()
        async with scripted(mesh) as worker:
            call = mesh.openai.Completions(completion())
            await eventually(lambda: len(worker.submits) == 1)
            call.cancel()
            await eventually(lambda: len(receiver.spans) == 3)
            (request,) = receiver.named("text_completion demo")
            assert request.attributes["error.type"] == "CANCELLED"


async def test_other_calls_have_no_spans(mesh: Mesh, receiver: TraceReceiver) -> None:
    await mesh.health()
    await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest()))
    await mesh.inference.Tokenize(inference_pb2.TokenizeRequest(text="word"))
    await mesh.completions({"prompt": PROMPT, "max_tokens": 1})
    await eventually(lambda: len(receiver.spans) == 3)
    assert {span.name for span in receiver.spans} == {"text_completion demo", "route", "submit"}


async def test_the_last_spans_are_sent_when_the_router_stops(
    monkeypatch: pytest.MonkeyPatch, receiver: TraceReceiver
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    async with running_mesh(otlp_traces_endpoint=receiver.address) as mesh:
        await mesh.completions({"prompt": PROMPT, "max_tokens": 1})
        assert receiver.spans == []
    assert len(receiver.spans) == 3


async def test_a_receiver_that_is_not_there_costs_one_line_of_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    endpoint = f"127.0.0.1:{free_port()}"
    with capture_logs() as logs:
        async with running_mesh(otlp_traces_endpoint=endpoint) as mesh:
            for _ in range(3):
                assert (await mesh.completions({"prompt": PROMPT, "max_tokens": 1})).status == 200
            stopped_at = time.monotonic()
        assert time.monotonic() - stopped_at < 4
    lines = [line for line in logs if "trace" in line["event"]]
    assert [(line["event"], line["endpoint"]) for line in lines] == [
        ("traces cannot be exported", f"http://{endpoint}")
    ]
    assert "UNAVAILABLE" in lines[0]["error"]
    assert [record for record in caplog.records if "opentelemetry" in record.name] == []


async def test_a_receiver_that_does_not_answer_does_not_keep_a_router_from_stopping(
    receiver: TraceReceiver,
) -> None:
    receiver.gate.clear()
    async with running_mesh(otlp_traces_endpoint=receiver.address) as mesh:
        for _ in range(3):
            assert (await mesh.completions({"prompt": PROMPT, "max_tokens": 1})).status == 200
        await eventually(lambda: receiver.num_calls == 1)
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < 4


async def test_the_endpoint_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, receiver: TraceReceiver
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{receiver.address}")
    async with running_mesh() as mesh:
        await mesh.completions({"prompt": PROMPT, "max_tokens": 1})
        await eventually(lambda: len(receiver.spans) == 4)
