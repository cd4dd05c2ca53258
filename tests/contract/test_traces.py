"""One trace for each request, through all processes, as a receiver of OTLP gets it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from pagemesh.config import TracesConfig
from tests.contract.http_answers import http_body
from tests.contract.router_harness import eventually, running_mesh
from tests.contract.test_router_migration import PACE, SLOW_PREFILL, ask, busy
from tests.support.trace_receiver import ReceivedSpan, TraceReceiver, running_receiver

PROMPT = list(range(10, 80))
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
BLOCK_BYTES = 16 * 2 * 2 * 2 * 4
"""Of 16 tokens in two layers: keys and values of one head of two numbers of four bytes."""
SAMPLED = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceReceiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with running_receiver() as receiver:
        yield receiver


def to(receiver: TraceReceiver, ratio: float | None = None) -> TracesConfig:
    return TracesConfig(receiver.address, ratio)


def tree(spans: Sequence[ReceivedSpan], parent_id: str) -> list[object]:
    """Service and name of each span with those below it, in the order in which they began."""
    below = [span for span in spans if span.parent_id == parent_id]
    below.sort(key=lambda span: span.span.start_time_unix_nano)
    return [
        (f"{span.resource['service.name']}: {span.name}", *tree(spans, span.span_id))
        for span in below
    ]


async def trace(receiver: TraceReceiver, num_spans: int) -> list[ReceivedSpan]:
    """All spans, once there are so many, which are of one trace."""
    await eventually(lambda: len(receiver.spans) >= num_spans)
    assert {span.trace_id for span in receiver.spans} == {receiver.spans[0].trace_id}
    assert len(receiver.spans) == num_spans
    return receiver.spans


def only(spans: Sequence[ReceivedSpan], name: str) -> ReceivedSpan:
    (found,) = (span for span in spans if span.name == name)
    return found


async def test_a_prompt_that_is_prefilled_elsewhere_is_one_trace_through_all_processes(
    receiver: TraceReceiver,
) -> None:
    async with running_mesh(prefill=1, traces=to(receiver)) as mesh:
        answer = await mesh.completions(
            {"prompt": PROMPT, "max_tokens": 5}, traceparent=SAMPLED, x_request_id="client-7"
        )
        assert answer.status == 200
        spans = await trace(receiver, 7)
    assert tree(spans, "b7ad6b7169203331") == [
        (
            "pagemesh-router: text_completion demo",
            ("pagemesh-router: route", ("pagemesh-kvstore: lookup",)),
            (
                "pagemesh-router: submit",
                (
                    "pagemesh-decode: decode",
                    ("pagemesh-decode: remote_prefill", ("pagemesh-prefill: prefill",)),
                ),
            ),
        )
    ]
    assert_lookup(spans)
    assert_decode(spans)
    assert_prefill(spans)


def assert_lookup(spans: Sequence[ReceivedSpan]) -> None:
    assert only(spans, "lookup").attributes == {
        "pagemesh.request_id": "client-7",
        "pagemesh.kv.blocks": 4,
        "pagemesh.kv.holders": 0,
    }


def assert_decode(spans: Sequence[ReceivedSpan]) -> None:
    decode = only(spans, "decode").attributes
    seconds = {key: decode.pop(key) for key in list(decode) if "latency" in key or "seconds" in key}
    assert decode == {
        "pagemesh.worker": "decode-0",
        "pagemesh.request_id": "client-7",
        "pagemesh.kv.path": "remote",
        "pagemesh.kv.received_tokens": 70,
        "gen_ai.request.model": "demo",
        "gen_ai.usage.input_tokens": 70,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert (
        0
        < seconds["gen_ai.latency.time_in_queue"]
        < seconds["gen_ai.latency.time_to_first_token"]
        <= seconds["gen_ai.latency.e2e"]
        < 10
    )
    assert 0 < seconds["pagemesh.kv.seconds"] < 10
    assert [name for name, _ in only(spans, "decode").events] == ["first_token"]


def assert_prefill(spans: Sequence[ReceivedSpan]) -> None:
    assert only(spans, "remote_prefill").attributes == {
        "pagemesh.worker": "prefill-0",
        "pagemesh.kv.received_tokens": 70,
    }
    prefill = only(spans, "prefill").attributes
    assert 0 < prefill.pop("gen_ai.latency.time_to_first_token") < 10
    assert prefill == {
        "pagemesh.request_id": "client-7",
        "pagemesh.worker": "prefill-0",
        "pagemesh.kv.blocks": 5,
        "pagemesh.kv.bytes": 5 * BLOCK_BYTES,
        "pagemesh.kv.reused_tokens": 0,
        "pagemesh.kv.computed_tokens": 70,
        "pagemesh.kv.received_tokens": 0,
        "gen_ai.usage.input_tokens": 70,
    }


async def test_a_request_that_is_handed_over_shows_both_workers_and_the_kv_that_was_pulled(
    receiver: TraceReceiver,
) -> None:
    async with running_mesh(
        decode=2,
        traces=to(receiver),
        seconds_per_token=PACE,
        prefill_rate=SLOW_PREFILL,
        remote_prefill_min_tokens=None,
    ) as mesh:
        leaving = ""

        async def stop() -> None:
            nonlocal leaving
            leaving = busy(mesh).worker_id
            await mesh.remove(leaving)

        await ask(mesh, {}, stop)
        (taker,) = mesh.workers
        await eventually(lambda: bool(receiver.named("text_completion demo")))
        await eventually(lambda: len(receiver.named("decode")) == 2)
    spans = receiver.spans
    assert {span.trace_id for span in spans} == {spans[0].trace_id}
    request = only(spans, "text_completion demo")
    assert ("worker_lost", {"pagemesh.worker": leaving, "error.type": "DRAINING"}) in request.events
    assert [name for name, _ in request.events] == ["kv_ready", "worker_lost"]
    sent = {span.attributes["pagemesh.worker"]: span for span in receiver.named("submit")}
    ran = {span.attributes["pagemesh.worker"]: span for span in receiver.named("decode")}
    assert set(sent) == set(ran) == {leaving, taker}
    for worker_id in (leaving, taker):
        assert ran[worker_id].parent_id == sent[worker_id].span_id
        assert sent[worker_id].parent_id == request.span_id
    assert sent[leaving].attributes["error.type"] == "DRAINING"
    assert ran[leaving].attributes["gen_ai.response.finish_reasons"] == ["moved"]
    num_before = ran[leaving].attributes["gen_ai.usage.output_tokens"]
    assert ran[taker].attributes["pagemesh.resumed_tokens"] == num_before
    assert sent[taker].attributes["pagemesh.resumed_tokens"] == num_before
    assert ran[taker].attributes["gen_ai.usage.output_tokens"] == 40 - num_before
    pull, fetch = only(spans, "pull"), only(spans, "fetch")
    assert (pull.parent_id, fetch.parent_id) == (ran[taker].span_id, pull.span_id)
    assert pull.attributes["pagemesh.worker"] == fetch.attributes["pagemesh.worker"] == leaving
    num_blocks = fetch.attributes["pagemesh.kv.blocks"]
    assert num_blocks >= 4
    assert fetch.attributes["pagemesh.kv.bytes"] == num_blocks * BLOCK_BYTES
    assert pull.attributes["pagemesh.kv.received_tokens"] == num_blocks * 16


async def test_a_worker_that_dies_leaves_what_the_router_knows_of_it(
    receiver: TraceReceiver,
) -> None:
    async with running_mesh(decode=2, traces=to(receiver), seconds_per_token=PACE) as mesh:
        dead = ""

        async def kill() -> None:
            nonlocal dead
            dead = busy(mesh).worker_id
            await busy(mesh).kill()

        await ask(mesh, {}, kill)
        await eventually(lambda: bool(receiver.named("text_completion demo")))
        await eventually(lambda: len(receiver.named("decode")) == 2)
    sent = {span.attributes["pagemesh.worker"]: span for span in receiver.named("submit")}
    assert len(sent) == 2
    assert sent[dead].attributes["error.type"] == "WORKER_LOST"
    assert sent[dead].span.status.code == Status.STATUS_CODE_ERROR
    ran = {span.attributes["pagemesh.worker"]: span for span in receiver.named("decode")}
    # In this test its process has not died with its connections.
    assert ran[dead].attributes["error.type"] == "CANCELLED"
    (request,) = receiver.named("text_completion demo")
    assert ("worker_lost", {"pagemesh.worker": dead, "error.type": "WORKER_LOST"}) in request.events
    assert "error.type" not in request.attributes


async def test_a_client_that_goes_away_ends_all_spans(receiver: TraceReceiver) -> None:
    async with running_mesh(traces=to(receiver), seconds_per_token=PACE) as mesh:
        call = mesh.openai.Completions(http_body({"prompt": PROMPT, "max_tokens": 400}))
        await eventually(lambda: any(w.engine.load().num_running for w in mesh.workers.values()))
        call.cancel()
        spans = await trace(receiver, 4)
    assert only(spans, "text_completion demo").attributes["error.type"] == "CANCELLED"
    assert only(spans, "decode").attributes["gen_ai.response.finish_reasons"] == ["cancelled"]
    assert "error.type" not in only(spans, "submit").attributes


async def test_what_whoever_began_the_trace_does_not_record_nobody_does(
    receiver: TraceReceiver,
) -> None:
    async with running_mesh(prefill=1, traces=to(receiver)) as mesh:
        unsampled = SAMPLED[:-2] + "00"
        body = {"prompt": PROMPT, "max_tokens": 2}
        assert (await mesh.completions(body, traceparent=unsampled)).status == 200
        assert (await mesh.completions({**body, "prompt": PROMPT[::-1]})).status == 200
        spans = await trace(receiver, 7)
    # Processes are told in the order of requests: of the first, spans would have come before.
    assert TRACE_ID not in {span.trace_id for span in spans}


@pytest.mark.parametrize("by", ["setting", "environment"])
async def test_of_traces_that_begin_here_the_share_is_recorded_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, receiver: TraceReceiver, by: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on" if by == "setting" else "always_off")
    traces = to(receiver, 0.0 if by == "setting" else None)
    async with running_mesh(traces=traces) as mesh:
        for _ in range(3):
            await mesh.completions({"prompt": PROMPT, "max_tokens": 1})
        await mesh.completions({"prompt": PROMPT, "max_tokens": 1}, traceparent=SAMPLED)
        spans = await trace(receiver, 4)
    assert spans[0].trace_id == TRACE_ID


async def test_a_receiver_that_hangs_holds_up_neither_requests_nor_the_end_of_any_process(
    receiver: TraceReceiver,
) -> None:
    receiver.gate.clear()
    async with running_mesh(prefill=1, traces=to(receiver)) as mesh:
        for number in range(5):
            body = {"prompt": PROMPT[number:], "max_tokens": 2}
            began = time.monotonic()
            assert (await mesh.completions(body)).status == 200
            assert time.monotonic() - began < 5
        await eventually(lambda: receiver.num_calls >= 2)
        closing = time.monotonic()
    # Router, workers together, kvstore: one after the other, two seconds at most for each.
    assert time.monotonic() - closing < 6 + 3


async def test_spans_that_nobody_takes_are_counted(receiver: TraceReceiver) -> None:
    receiver.refuses = True
    async with running_mesh(traces=to(receiver)) as mesh:
        await mesh.completions({"prompt": PROMPT, "max_tokens": 1})
        worker = mesh.workers["decode-0"]
        await eventually(lambda: worker.metric("pagemesh:spans_dropped_total") == 1)
        lost = 0.0
        for _ in range(500):
            lost = await mesh.metric("pagemesh:spans_dropped_total")
            if lost == 3:
                break
            await asyncio.sleep(0.01)
        assert lost == 3
