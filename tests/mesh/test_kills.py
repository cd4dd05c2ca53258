"""kill -9 of anybody in the middle of a request: nothing hangs, every block comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.mesh.harness import MODEL, Mesh, until
from tests.support.late_imports import openai

CLIENT = Path(__file__).with_name("streaming_client.py")

# About 1,500 tokens: hundreds of steps of the mesh's 4 tokens.
LONG_PROMPT = "The mesh has a router, a prefill worker, a decode worker and a kvstore. " * 60

COUNTING = "Count from 1 to 100:"


def completion(prompt: str, max_tokens: int) -> dict[str, Any]:
    """A greedy completion of exactly `max_tokens` tokens."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}


def ask(mesh: Mesh, body: dict[str, Any]) -> str:
    answer = mesh.client().completions.create(**body, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == body["max_tokens"]
    return str(answer.choices[0].text)


def in_background(work: Callable[[], str]) -> Future[str]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def test_a_killed_client_frees_its_blocks_in_every_phase(fragile_mesh: Mesh) -> None:
    mesh = fragile_mesh
    before = num_aborted(mesh)
    with streaming_client(mesh, completion(LONG_PROMPT, 100)):
        until(lambda: mesh.num_used_blocks("prefill-0") > 0, "the prompt is being prefilled")
    mesh.wait_until_idle()

    with streaming_client(mesh, completion(COUNTING, 1500)) as client:
        assert client.stdout is not None
        assert client.stdout.readline().startswith("data: ")
        assert mesh.num_used_blocks("decode-0") > 0
    mesh.wait_until_idle()
    assert num_aborted(mesh) - before == 2
    assert ask(mesh, completion("The capital of France is", 4))


def num_aborted(mesh: Mesh) -> float:
    return mesh.metric("decode-0", "vllm:request_success_total", finished_reason="abort")


@contextmanager
def streaming_client(mesh: Mesh, body: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A client in a process of its own; killed at the end."""
    body = {**body, "stream": True, "ignore_eos": True}
    command = [sys.executable, str(CLIENT), mesh.url, json.dumps(body)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def test_a_killed_prefill_worker_costs_nothing_but_time(fragile_mesh: Mesh) -> None:
    mesh = fragile_mesh
    body = completion(LONG_PROMPT, 24)
    undisturbed = ask(mesh, body)
    num_fallbacks = num_remote_prefills(mesh, "fallback")
    num_sent = mesh.metric("prefill-0", "pagemesh:kv_blocks_sent_total")
    answer = in_background(lambda: ask(mesh, body))
    until(
        lambda: mesh.metric("prefill-0", "pagemesh:kv_blocks_sent_total") > num_sent,
        "the first KV has been sent",
    )
    wait_until_back = mesh.kill("prefill-0")
    assert answer.result(timeout=60) == undisturbed
    assert num_remote_prefills(mesh, "fallback") - num_fallbacks == 1
    mesh.wait_until_worker_idle("decode-0")

    wait_until_back()
    mesh.wait_until_complete()
    num_complete = num_remote_prefills(mesh, "complete")
    assert ask(mesh, body) == undisturbed
    assert num_remote_prefills(mesh, "complete") - num_complete == 1
    mesh.wait_until_idle()


def num_remote_prefills(mesh: Mesh, outcome: str) -> float:
    return mesh.metric("decode-0", "pagemesh:remote_prefills_total", outcome=outcome)


@pytest.mark.product(most=1)
@pytest.mark.parametrize("engine", [False, True], ids=["worker", "engine"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_killed_decode_worker_costs_nothing_but_time(
    fragile_mesh: Mesh, phase: str, engine: bool
) -> None:
    mesh = fragile_mesh
    body = completion(LONG_PROMPT, 24) if phase == "prefill" else completion(COUNTING, 1000)
    undisturbed = ask(mesh, body)
    num_moved = mesh.metric("router", "pagemesh:requests_resubmitted_total", reason="lost")
    num_tokens = num_generated(mesh)
    answer = in_background(lambda: ask(mesh, body))
    if phase == "prefill":
        until(lambda: mesh.num_used_blocks("prefill-0") > 0, "the prompt is being prefilled")
    else:
        until(lambda: num_generated(mesh) > num_tokens + 10, "tokens are being generated")
    wait_until_back = mesh.kill("decode-0", engine=engine)
    # There is no other one: it goes on with the next incarnation.
    assert answer.result(timeout=60) == undisturbed
    moved = mesh.metric("router", "pagemesh:requests_resubmitted_total", reason="lost")
    assert moved - num_moved == 1
    wait_until_back()
    mesh.wait_until_complete()
    mesh.wait_until_idle()


DEADLY_SCHEMA = {"type": "integer", "const": -1e19}
"""The library that compiles it overflows its stack."""


def test_a_grammar_that_would_end_an_engine_costs_nobody_but_who_sent_it(
    fragile_mesh: Mesh,
) -> None:
    mesh = fragile_mesh

    def engines() -> set[psutil.Process]:
        parts = mesh.parts()
        return {child for worker in mesh.workers() for child in parts[worker].children()}

    undisturbed = ask(mesh, completion(COUNTING, 400))
    before = engines()
    assert len(before) == 2
    answer = in_background(lambda: ask(mesh, completion(COUNTING, 400)))
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": DEADLY_SCHEMA}}
    for prompt in ("Say a number.", LONG_PROMPT):
        with pytest.raises(openai.BadRequestError) as caught:
            mesh.client().chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": prompt}],
                response_format=schema,
            )
        assert "cannot be compiled: the library that compiles it fails over it" in str(caught.value)
        assert caught.value.param == "response_format"
    assert answer.result(timeout=60) == undisturbed
    assert engines() == before
    mesh.wait_until_idle()


def num_generated(mesh: Mesh) -> float:
    return mesh.metric("decode-0", "vllm:generation_tokens_total")


@contextmanager
def long_stream(mesh: Mesh) -> Iterator[openai.Stream[Any]]:
    """A long answer of which the first token has arrived."""
    body = completion(COUNTING, 1500)
    with mesh.client().completions.create(
        **body, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(stream)
        yield stream


def test_without_the_kvstore_requests_are_still_answered(fragile_mesh: Mesh) -> None:
    mesh = fragile_mesh
    before = mesh.metric("router", "pagemesh:routing_without_index_total")
    wait_until_back = mesh.kill("kvstore")
    # Long enough to have blocks that the router asks about.
    assert ask(mesh, completion("The capital of Spain is Madrid. " * 8, 4))
    assert mesh.metric("router", "pagemesh:routing_without_index_total") - before == 1
    wait_until_back()


def test_a_router_killed_in_mid_stream_ends_the_stream_and_frees_the_blocks(
    fragile_mesh: Mesh,
) -> None:
    before = num_aborted(fragile_mesh)
    with long_stream(fragile_mesh) as stream:
        wait_until_back = fragile_mesh.kill("router")
        with pytest.raises((openai.APIError, httpx.TransportError)):
            for _ in stream:
                pass
    fragile_mesh.wait_until_worker_idle("decode-0")
    # Not because the answer was complete.
    assert num_aborted(fragile_mesh) - before == 1
    wait_until_back()
    fragile_mesh.wait_until_complete()
    assert ask(fragile_mesh, completion("The capital of Italy is", 4))


def test_a_killed_gateway_comes_back_on_its_port(fragile_mesh: Mesh) -> None:
    wait_until_back = fragile_mesh.kill("gateway")
    wait_until_back()
    fragile_mesh.wait_until_complete()
    assert ask(fragile_mesh, completion("The capital of Italy is", 4))
