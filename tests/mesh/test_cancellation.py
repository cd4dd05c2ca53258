"""A client leaves in each phase of its request, on purpose: nobody computes for it and nothing of its is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagemesh.router.tenants.keys import hash_of
from pagemesh.rpc.channels import channel_options
from pagemesh.v1 import inference_pb2, inference_pb2_grpc
from tests.mesh.conftest import DEMO
from tests.mesh.harness import MODEL, Mesh, running_mesh, until
from tests.mesh.leaving_client import KEY, LeavingClient
from tests.mesh.test_kills import LONG_PROMPT
from tests.support.metrics import metric

COMPLETIONS = "/v1/completions"
DECODERS = ("decode-0", "decode-1")
WORKERS = ("prefill-0", *DECODERS)
MAX_TOKENS = 16_000
"""Of an answer that is not to end by itself, however long the test waits for others."""

# Takes seconds to compile.
SLOW_SCHEMA = {
    "type": "object",
    "properties": {f"f{i}": {"type": "integer", "multipleOf": 9973 - i} for i in range(40)},
    "required": [f"f{i}" for i in range(40)],
}


def long_model(folder: Path) -> Path:
    """The demo model, for contexts of more than it was made for."""
    model = folder / MODEL
    shutil.copytree(
        DEMO, model, ignore=shutil.ignore_patterns("*.py", "demo_corpus", "__pycache__")
    )
    config = json.loads((DEMO / "config.json").read_text())
    config["max_position_embeddings"] = MAX_TOKENS + 384
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.fixture(scope="module")
def narrow_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One slot on each worker, long prefills, and a tenant that may have three requests at once."""
    folder = tmp_path_factory.mktemp("narrow")
    keys = folder / "keys.yaml"
    tenant = {"keys": [hash_of(KEY)], "concurrent_requests": 3}
    keys.write_text(json.dumps({"tenants": {"leaver": tenant}}))
    arguments = ["--model", str(long_model(folder)), "--no-sample", "--no-enable-prefix-caching"]
    arguments += ["--decode", "2", "--max-num-seqs", "1", "--max-num-batched-tokens", "2"]
    arguments += ["--remote-prefill-min-tokens", "16", "--api-key-file", str(keys)]
    with running_mesh(folder, *arguments) as running:
        yield running


@pytest.fixture
def mesh(narrow_mesh: Mesh) -> Mesh:
    """With nobody in it, before and after."""
    wait_until_empty(narrow_mesh)
    return narrow_mesh


def num_requests(mesh: Mesh, *workers: str) -> tuple[float, float]:
    """That run, and that wait for something."""
    pages = [mesh.metrics_page(worker) for worker in workers]
    running, waiting = (
        sum(metric(page, f"vllm:num_requests_{state}") for page in pages)
        for state in ("running", "waiting")
    )
    return running, waiting


def num_admitted(mesh: Mesh) -> float:
    return mesh.metric("router", "pagemesh:requests_in_progress")


def wait_until_empty(mesh: Mesh) -> None:
    """No request anywhere, and no block in use."""
    until(lambda: num_admitted(mesh) == 0, "the router has its places back")
    until(lambda: num_requests(mesh, *WORKERS) == (0, 0), "nobody computes")
    for worker in WORKERS:
        mesh.wait_until_worker_idle(worker)


@contextmanager
def nobody_stays(mesh: Mesh, num_aborted: int = 1) -> Iterator[None]:
    """Afterwards the mesh is empty, and so many requests were ended before they came to their own end."""

    def aborted() -> float:
        reason = {"finished_reason": "abort"}
        return sum(mesh.metric(w, "vllm:request_success_total", **reason) for w in DECODERS)

    before = aborted()
    yield
    wait_until_empty(mesh)
    assert aborted() - before == num_aborted


def completion(prompt: str = "Count from 1 to 100:", **fields: Any) -> dict[str, Any]:
    fields = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True, **fields}
    return {"model": MODEL, "prompt": prompt, "stream": True, **fields}


def long_completion(beginning: str = "", **fields: Any) -> dict[str, Any]:
    """Whose prefill takes hundreds of steps; equal prompts would go to one decode worker."""
    return completion(beginning + LONG_PROMPT, max_tokens=100, **fields)


@contextmanager
def answering(mesh: Mesh, count: int) -> Iterator[None]:
    """So many others have a slot of a decode worker, and do not get to the end of their answers."""
    body = completion("Hi", max_tokens=MAX_TOKENS)
    others = [LeavingClient(mesh, COMPLETIONS, body) for _ in range(count)]
    try:
        until(lambda: num_requests(mesh, *DECODERS) == (count, 0), "the others are answered")
        yield
    finally:
        for other in others:
            other.leave()


def test_in_the_queue_of_a_decode_worker(mesh: Mesh) -> None:
    with nobody_stays(mesh, 3), answering(mesh, 2):
        with LeavingClient(mesh, COMPLETIONS, completion()):
            until(lambda: num_requests(mesh, *DECODERS) == (2, 1), "the request waits")
        until(lambda: num_requests(mesh, *DECODERS) == (2, 0), "it waits no more")
        until(lambda: num_admitted(mesh) == 2, "its place is free")


def test_in_the_queue_of_the_prefill_worker(mesh: Mesh) -> None:
    other = completion(LONG_PROMPT + LONG_PROMPT[:2000], max_tokens=500)
    with nobody_stays(mesh, 2), LeavingClient(mesh, COMPLETIONS, other):
        until(lambda: num_requests(mesh, "prefill-0") == (1, 0), "another prompt is prefilled")
        with LeavingClient(mesh, COMPLETIONS, long_completion("Now to something else. ")):
            until(lambda: num_requests(mesh, "prefill-0") == (1, 1), "the prompt waits")
        # The other one may have gone on to its answer.
        until(lambda: num_requests(mesh, "prefill-0")[1] == 0, "it waits no more")
        until(lambda: sum(num_requests(mesh, *DECODERS)) == 1, "nor does the decode worker")


def test_while_its_prompt_is_prefilled(mesh: Mesh) -> None:
    num_tokens = mesh.metric("prefill-0", "vllm:generation_tokens_total")
    with nobody_stays(mesh), LeavingClient(mesh, COMPLETIONS, long_completion()):
        until(lambda: num_requests(mesh, "prefill-0") == (1, 0), "the prompt is prefilled")
    # It was not run to its end.
    assert mesh.metric("prefill-0", "vllm:generation_tokens_total") == num_tokens


def test_while_its_kv_is_received(mesh: Mesh) -> None:
    def num_sent() -> float:
        return mesh.metric("prefill-0", "pagemesh:kv_blocks_sent_total")

    before = num_sent()
    with nobody_stays(mesh), LeavingClient(mesh, COMPLETIONS, long_completion()):
        until(lambda: num_sent() >= before + 4, "some KV has come")
        assert num_requests(mesh, *DECODERS) == (0, 1)


@pytest.mark.parametrize("num_answers", [1, 2])
def test_while_it_is_answered(mesh: Mesh, num_answers: int) -> None:
    body = completion(n=num_answers)
    with nobody_stays(mesh, num_answers), LeavingClient(mesh, COMPLETIONS, body) as client:
        client.read_until("data: ", 5)


def test_while_its_second_answer_waits_for_the_first_ones_kv(mesh: Mesh) -> None:
    with nobody_stays(mesh, 2), LeavingClient(mesh, COMPLETIONS, long_completion(n=2)):
        until(lambda: num_requests(mesh, *DECODERS) == (0, 2), "both wait")


def test_when_the_last_token_is_out_and_the_end_of_the_stream_is_not_read(mesh: Mesh) -> None:
    body = completion(max_tokens=4)
    with nobody_stays(mesh, 0), LeavingClient(mesh, COMPLETIONS, body) as client:
        client.read_until('"finish_reason":"length"')


def test_while_its_prompt_is_on_its_way_and_turned_into_tokens(mesh: Mesh) -> None:
    # More than the context, so that no worker hears of it.
    with nobody_stays(mesh, 0):
        for _ in range(10):
            with LeavingClient(mesh, COMPLETIONS, completion(LONG_PROMPT * 1000)):
                pass


def test_while_its_grammar_is_compiled(mesh: Mesh) -> None:
    forms = {"structured_outputs": {"json": SLOW_SCHEMA}}
    body = completion("Say a word", **forms)
    with nobody_stays(mesh), LeavingClient(mesh, COMPLETIONS, body):
        until(lambda: num_requests(mesh, *DECODERS) == (0, 1), "the request waits")


def test_while_its_prompt_is_embedded(mesh: Mesh) -> None:
    body = {"model": MODEL, "input": LONG_PROMPT}
    with nobody_stays(mesh), LeavingClient(mesh, "/v1/embeddings", body):
        until(lambda: num_requests(mesh, *DECODERS) == (1, 0), "the prompt is computed")


def test_a_call_of_grpc_that_is_cancelled_on_a_connection_that_stays(mesh: Mesh) -> None:
    request = inference_pb2.GenerateRequest(model=MODEL, text="Count from 1 to 100:")
    request.sampling.max_tokens = 1500
    request.sampling.ignore_eos = True
    with grpc.insecure_channel(mesh.address, options=channel_options()) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        with nobody_stays(mesh):
            key = (("authorization", f"Bearer {KEY}"),)
            call = stub.Generate(request, timeout=30, metadata=key)
            next(call)
            call.cancel()


def test_the_tenants_places_are_all_there_afterwards(mesh: Mesh) -> None:
    for _ in range(2):
        with (
            nobody_stays(mesh, 3),
            answering(mesh, 2),
            LeavingClient(mesh, COMPLETIONS, completion()),
        ):
            until(lambda: num_admitted(mesh) == 3, "all three are in")
            with LeavingClient(mesh, COMPLETIONS, completion()) as fourth:
                fourth.read_until("concurrent requests: limit 3")
