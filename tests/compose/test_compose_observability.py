"""The observability overlay: Prometheus finds every part, and a trace has the spans of them all."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.compose.asking import QUESTIONS, ask
from tests.compose.compose_mesh import ComposeMesh, compose_mesh
from tests.compose.container_engine import ContainerEngine
from tests.compose.scraped import query, wait_until_all_are_scraped
from tests.support.late_imports import openai

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

ROLES = ("gateway", "router", "prefill", "decode", "kvstore")
DEADLINE_S = 60


@pytest.fixture(scope="module")
def mesh(engine: ContainerEngine, variables: dict[str, str]) -> Iterator[ComposeMesh]:
    further = {**variables, "PROMETHEUS_PORT": "0"}
    started = ("gateway", "prefill-0", "prefill-1", "decode-0", "decode-1", "prometheus", "jaeger")
    with compose_mesh(engine, ("observability",), further, started) as running:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none")
        for question in QUESTIONS:
            ask(client, question)
        # Long enough for a prefill worker.
        ask(client, " ".join(QUESTIONS * 8))
        yield running


def test_every_part_is_scraped(mesh: ComposeMesh) -> None:
    wait_until_all_are_scraped(mesh)


def test_what_was_asked_is_counted(mesh: ComposeMesh) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not query(mesh, "sum(vllm:request_success_total) > 4"):
        assert time.monotonic() < deadline
        time.sleep(1)


def test_every_kind_of_part_records_spans(mesh: ComposeMesh) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while missing := [role for role in ROLES if f"pagemesh-{role}" not in collected(mesh)]:
        assert time.monotonic() < deadline, missing
        time.sleep(1)


def collected(mesh: ComposeMesh) -> str:
    """What Jaeger knows of; of what stands for it where its image cannot be pulled, the spans that it prints."""
    url = "http://jaeger:16686/api/services"
    program = (
        f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=10).read().decode())"
    )
    try:
        known = mesh.execute("router-0", "python", "-c", program)
    except AssertionError:
        known = ""
    return known + mesh.compose("logs", "--no-color", "jaeger")
