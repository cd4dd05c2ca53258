"""One trace and one id for each request in all processes of a mesh, as a real collector passes it on; and no text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL, Mesh, running_mesh, until
from tests.support.collector import running_collector
from tests.support.trace_receiver import ReceivedSpan, TraceReceiver, running_receiver

pytestmark = pytest.mark.costly

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
PARENT_ID = "b7ad6b7169203331"
MARK = "zanzibarian quokkas"
"""Stands in every prompt of these tests."""
PROMPT = f"Tell me a long story about {MARK}, a river and the town behind it. " * 4


@pytest.fixture(scope="module")
def receiver() -> Iterator[TraceReceiver]:
    with running_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def mesh(receiver: TraceReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("traces")
    arguments = ["--model", str(DEMO), "--no-sample", "--decode", "2", "--log-level", "debug"]
    # On busy cores, an answer of the index may take longer than a router would wait for it.
    arguments += ["--remote-prefill-min-tokens", "16", "--lookup-timeout", "5"]
    with (
        running_collector(folder, receiver.address) as collector,
        running_mesh(folder, *arguments, "--otlp-traces-endpoint", collector) as running,
    ):
        yield running


def ids(trace_id: str, request_id: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{PARENT_ID}-01", "x-request-id": request_id}


def trace(receiver: TraceReceiver, trace_id: str, services: Sequence[str]) -> list[ReceivedSpan]:
    """All spans of a trace: once each of these services has sent some, and every span's parent is there.

    A process sends its spans as they end, a parent behind what is below it.
    """

    def found() -> list[ReceivedSpan]:
        spans = [span for span in receiver.spans if span.trace_id == trace_id]
        there = {span.resource["service.name"] for span in spans}
        ids = {PARENT_ID, *(span.span_id for span in spans)}
        whole = all(span.parent_id in ids for span in spans)
        return spans if whole and there >= {f"pagemesh-{service}" for service in services} else []

    return until(found, f"spans of {services}")


def tree(spans: Sequence[ReceivedSpan], parent_id: str) -> list[object]:
    below = [span for span in spans if span.parent_id == parent_id]
    below.sort(key=lambda span: span.span.start_time_unix_nano)
    return [(span.name, *tree(spans, span.span_id)) for span in below]


def lines(mesh: Mesh) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every line of JSON that the parts have logged, with the part's name."""
    for log in mesh.logs.glob("*"):
        *whole, _ = log.read_text().split("\n")  # the last is being written
        for line in whole:
            if line.startswith("{"):
                yield log.name.partition(".")[0], json.loads(line)


def test_a_request_is_one_trace_and_one_id_from_the_gateway_to_the_prefill_worker(
    mesh: Mesh, receiver: TraceReceiver
) -> None:
    trace_id = os.urandom(16).hex()
    mesh.client().completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=8, extra_headers=ids(trace_id, "traced-1")
    )
    services = ("gateway", "router", "kvstore", "decode", "prefill")
    spans = trace(receiver, trace_id, services)
    assert tree(spans, PARENT_ID) == [
        (
            "POST /v1/completions",
            (
                "text_completion demo",
                ("route", ("lookup",)),
                ("submit", ("decode", ("remote_prefill", ("prefill",)))),
            ),
        )
    ]
    (decode,) = (span for span in spans if span.name == "decode")
    assert decode.attributes["pagemesh.kv.path"] == "remote"
    assert decode.attributes["pagemesh.kv.received_tokens"] > 50
    (prefill,) = (span for span in spans if span.name == "prefill")
    assert prefill.attributes["pagemesh.kv.bytes"] > 1000
    worker = decode.attributes["pagemesh.worker"]

    def parts() -> set[str]:
        return {part for part, line in lines(mesh) if line.get("request_id") == "traced-1"}

    wanted = {"access", "router", "kvstore", worker, "prefill-0"}
    until(lambda: parts() >= wanted, f"lines of {wanted}")
    for part, line in lines(mesh):
        if line.get("request_id") == "traced-1":
            assert line.get("trace_id") == trace_id, (part, line)


def test_a_request_whose_worker_is_killed_shows_both_workers_and_the_reason(
    mesh: Mesh, receiver: TraceReceiver
) -> None:
    trace_id = os.urandom(16).hex()
    stream = mesh.client().completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=1800,
        stream=True,
        extra_headers=ids(trace_id, "killed-1"),
        extra_body={"ignore_eos": True},
    )
    chunks = iter(stream)
    for _ in range(5):
        next(chunks)
    killed = until(
        lambda: next(
            (w for w in ("decode-0", "decode-1") if mesh.metric(w, "vllm:num_requests_running")), ""
        ),
        "a worker that runs it",
    )
    wait_until_back = mesh.kill(killed)
    assert list(chunks)[-1].choices[0].finish_reason == "length"
    names = ("POST /v1/completions", "text_completion demo", "decode")

    # A process sends what has ended every few seconds: a trace may come in parts.
    def all_of_it() -> list[ReceivedSpan]:
        spans = [span for span in receiver.spans if span.trace_id == trace_id]
        return spans if {span.name for span in spans} >= set(names) else []

    spans = until(all_of_it, f"spans called {names}")
    sent = {span.attributes["pagemesh.worker"]: span for span in spans if span.name == "submit"}
    assert set(sent) == {"decode-0", "decode-1"}
    assert sent[killed].attributes["error.type"] == "WORKER_LOST"
    (taker,) = set(sent) - {killed}
    assert sent[taker].attributes["pagemesh.resumed_tokens"] >= 4
    # Who is killed has no time to tell of it.
    (decode,) = (span for span in spans if span.name == "decode")
    assert decode.parent_id == sent[taker].span_id
    (request,) = (span for span in spans if span.name == "text_completion demo")
    assert ("worker_lost", {"pagemesh.worker": killed, "error.type": "WORKER_LOST"}) in (
        request.events
    )
    wait_until_back()


def _generated(mesh: Mesh) -> list[str]:
    """Asks in every way, well and badly; gives what was answered."""
    client, told = mesh.client(), []
    chat = [{"role": "user", "content": PROMPT}]
    answer = client.chat.completions.create(model=MODEL, messages=chat, max_tokens=24)  # type: ignore[arg-type]
    told.append(answer.choices[0].message.content or "")
    completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, logprobs=2)
    told.append(completion.choices[0].text)
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, stream=True)
    told.append("".join(chunk.choices[0].text for chunk in stream))
    bad: list[tuple[str, dict[str, Any]]] = [
        ("completions", {"prompt": PROMPT, "temperature": 99}),
        ("completions", {"prompt": {"text": PROMPT}}),
        ("completions", {"prompt": PROMPT * 200}),
        ("completions", {"prompt": PROMPT, "stop": [MARK, 5]}),
        ("completions", {"prompt": PROMPT, "max_tokens": MARK}),
        ("completions", {"prompt": PROMPT, MARK: 1}),
        ("chat/completions", {"messages": PROMPT}),
        ("chat/completions", {"messages": [{"role": MARK, "content": PROMPT}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": MARK}]}]}),
        ("chat/completions", {"messages": chat, "tools": [{"type": "function", "x": MARK}]}),
        ("completions", {"prompt": PROMPT, "structured_outputs": {"regex": f"({MARK}"}}),
        ("completions", {"prompt": PROMPT, "structured_outputs": {"grammar": MARK}}),
        ("embeddings", {"input": PROMPT}),
        ("responses", {"input": [{"role": MARK}]}),
        ("messages", {"messages": [{"role": "user", "content": {"a": MARK}}], "max_tokens": 2}),
        ("messages", {"messages": chat, "max_tokens": 2}),
        ("responses", {"input": PROMPT, "max_output_tokens": 16}),
    ]
    for path, body in bad:
        httpx.post(f"{mesh.url}/v1/{path}", json={"model": MODEL, **body}, timeout=30)
    httpx.post(f"{mesh.url}/v1/completions", content=f'{{"prompt": "{PROMPT}', timeout=30)
    httpx.post(f"{mesh.url}/tokenize", json={"model": MODEL, "prompt": PROMPT}, timeout=30)
    return told


def test_no_text_of_a_prompt_or_an_answer_is_logged_or_traced(
    mesh: Mesh, receiver: TraceReceiver
) -> None:
    told = _generated(mesh)
    request_id = "last-of-all"
    mesh.client().completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=2, extra_headers={"x-request-id": request_id}
    )
    until(
        lambda: any(line.get("request_id") == request_id for _, line in lines(mesh)),
        "the last lines",
    )
    # The router sends spans in the order in which they ended.
    until(
        lambda: any(
            span.resource["service.name"] == "pagemesh-router"
            and span.attributes.get("pagemesh.request_id") == request_id
            for span in receiver.spans
        ),
        "the last spans",
    )
    said = {f"log of {name}": text for name, text in mesh.logged().items()}
    said["traces"] = "\n".join(f"{span.span} {span.resource}" for span in receiver.spans)
    # There is something to look through: refusals, and lines of what was killed.
    assert said["log of router.log"].count('"request refused"') >= 10
    assert "worker_lost" in said["traces"]
    texts = {MARK, *(text.strip()[:16] for text in told)}
    assert min(map(len, texts)) > 8
    found = [(place, text) for place, all_ in said.items() for text in texts if text in all_]
    assert found == []


def test_whoever_asks_for_prompts_gets_as_much_of_them_as_they_say(tmp_path: Path) -> None:
    arguments = ["--model", str(DEMO), "--no-sample", "--prefill", "0", "--log-level", "debug"]
    arguments += ["--enable-log-requests", "--max-log-len", "40"]
    with running_mesh(tmp_path, *arguments) as mesh:
        mesh.client().completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=3,
            temperature=0.5,
            extra_headers={"x-request-id": "asked-1"},
        )
        (received,) = until(lambda: mesh.log("router", "request received"), "its line")
        (prompt,) = mesh.log("router", "request prompt")
        (ended,) = until(lambda: mesh.log("router", "request ended"), "its last line")
    assert received["request_id"] == prompt["request_id"] == ended["request_id"] == "asked-1"
    assert received["params"].items() >= {"temperature": 0.5, "max_tokens": 3}.items()
    assert MARK not in json.dumps(received)
    assert prompt["prompt"] == PROMPT[:40]
    assert len(prompt["prompt_token_ids"]) == 40
    assert ended["num_completion_tokens"] == 3
