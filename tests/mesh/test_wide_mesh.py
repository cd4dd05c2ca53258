"""Several routers, decode workers with few places, chats of several turns, and a worker that is odd."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagemesh.v1 import types_pb2
from tests.mesh.chat import BLOCK_SIZE, chat_on, num_generated, num_reusable
from tests.mesh.harness import MODEL, Mesh, option, running_mesh, until
from tests.mesh.odd_worker import OddWorker, make_odd_demo, running_odd_worker
from tests.mesh.router_calls import address_of, answers, ask, num_workers
from tests.support.workers import RouterSession

pytestmark = pytest.mark.costly

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
ROUTERS = ("router-0", "router-1")
NUM_SEATS = 4
NUM_PROMPTS = 4


@pytest.fixture(scope="module")
def wide_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two routers, three decode workers with few places each, and a prefill worker for what lacks a block."""
    arguments = ["--model", str(DEMO), "--no-sample", "--router", "2", "--decode", "3"]
    arguments += ["--remote-prefill-min-tokens", "17", "--lookup-timeout", "5"]
    arguments += ["--max-num-batched-tokens", "16", "--max-num-seqs", "4"]
    with running_mesh(tmp_path_factory.mktemp("wide"), *arguments) as running:
        yield running


def known_load(mesh: Mesh) -> list[float]:
    """Requests that run on the workers, as each router knows."""
    return [mesh.metric(router, "vllm:num_requests_running") for router in ROUTERS]


async def test_every_turn_returns_to_the_worker_that_generated_the_last_answer(
    wide_mesh: Mesh,
) -> None:
    async with chat_on(wide_mesh) as chat:
        turns = [await chat.say("Tell me a story about number 2.")]
        # Without a pause: what the last answer left behind is found all the same.
        for text in ("And then?", "What is the capital of France?", "Another one!", "Thank you."):
            turns.append(await chat.say(text))
    assert len({turn.worker for turn in turns}) == 1
    for last, turn in itertools.pairwise(turns):
        assert turn.num_cached == num_reusable(last)
    wide_mesh.wait_until_idle()


async def test_a_turn_that_cannot_return_takes_the_kv_of_its_chat_along(wide_mesh: Mesh) -> None:
    mesh = wide_mesh
    async with chat_on(mesh) as chat:
        last = await chat.say("Tell me a story about number 1.", 300)
        # Enough of it was generated for a pull to be worth its while.
        assert num_reusable(last) > 100
        address = f"127.0.0.1:{option(mesh.parts()[last.worker], '--port')}"
        async with RouterSession(address) as other:
            for handle in range(1, NUM_SEATS + 1):
                sampling = types_pb2.SamplingParams(max_tokens=1500, ignore_eos=True)
                await other.submit(handle, [20 + handle] * 8, sampling=sampling)
            for handle in range(1, NUM_SEATS + 1):
                await other.has_tokens(handle)
            await asyncio.to_thread(
                until, lambda: known_load(mesh) == [NUM_SEATS, NUM_SEATS], "the load is known"
            )
            pulled = mesh.metric("prefill-0", "pagemesh:kv_pulls_total", outcome="complete")
            moved = await chat.say("Tell me a story about number 2.", 300)
        assert moved.worker != last.worker
        assert moved.num_cached == num_reusable(last)
        now = mesh.metric("prefill-0", "pagemesh:kv_pulls_total", outcome="complete")
        assert now - pulled == 1
        await asyncio.to_thread(until, lambda: known_load(mesh) == [0, 0], "the load is gone")
        # Wherever it runs now, what was generated elsewhere is there too.
        assert num_reusable(moved) > num_reusable(last) + 100
        back = await chat.say("Really?")
        assert (back.worker, back.num_cached) == (moved.worker, num_reusable(moved))
    mesh.wait_until_idle()


def who_answers(mesh: Mesh, address: str, prompt: list[int]) -> str:
    """Where a prompt goes through one router."""
    until(lambda: known_load(mesh) == [0, 0], "nothing runs")
    before = num_generated(mesh)
    ask(address, prompt)
    after = num_generated(mesh)
    (worker,) = [name for name in after if after[name] > before[name]]
    return worker


def test_the_same_prompts_go_to_the_same_workers_through_either_router(wide_mesh: Mesh) -> None:
    mesh = wide_mesh
    first, second = (address_of(mesh, router) for router in ROUTERS)
    prompts = [[30 + (7 * i + n) % 400 for i in range(4 * BLOCK_SIZE)] for n in range(NUM_PROMPTS)]
    cold = [who_answers(mesh, first, prompt) for prompt in prompts]
    # They were spread, so that agreeing is no accident.
    assert len(set(cold)) > 1
    assert [who_answers(mesh, second, prompt) for prompt in prompts] == cold
    mesh.wait_until_idle()


def test_what_one_router_sends_is_load_to_the_other(wide_mesh: Mesh) -> None:
    mesh = wide_mesh
    first, _ = (address_of(mesh, router) for router in ROUTERS)
    until(lambda: known_load(mesh) == [0, 0], "nothing runs")
    with answers(first, [40] * 8, 1000) as one, answers(first, [50] * 8, 1000) as two:
        next(one), next(two)
        until(
            lambda: mesh.metric("router-1", "vllm:num_requests_running") == 2,
            "the other router knows of both",
        )
        assert mesh.metric("router-1", "pagemesh:requests_in_progress") == 0
        one.cancel(), two.cancel()  # type: ignore[attr-defined]
    mesh.wait_until_idle()


def test_a_router_killed_in_mid_request_costs_only_its_own_requests(wide_mesh: Mesh) -> None:
    mesh = wide_mesh
    first, second = (address_of(mesh, router) for router in ROUTERS)
    prompts = [[60 + n] * 8 for n in range(3)]
    expected = [ask(second, prompt, 200) for prompt in prompts]
    with ExitStack() as stack:
        lost = stack.enter_context(answers(first, [50] * 8, 1500))
        next(lost)
        # One on each decode worker, and so one beside the other router's.
        kept = [stack.enter_context(answers(second, prompt, 200)) for prompt in prompts]
        token_ids = [list(next(pieces).token_ids) for pieces in kept]
        wait_until_back = mesh.kill("router-0")
        with pytest.raises(grpc.RpcError) as caught:
            for _ in lost:
                pass
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        for found, pieces in zip(token_ids, kept, strict=True):
            found += [token_id for piece in pieces for token_id in piece.token_ids]
    assert token_ids == expected
    wait_until_back()
    # It knows from the kvstore alone who is there.
    until(lambda: num_workers(first) == (3, 1), "the new router reaches all workers")
    assert ask(first, prompts[0], 200) == expected[0]
    mesh.wait_until_idle()


@pytest.fixture
def odd_worker(wide_mesh: Mesh, tmp_path: Path) -> Iterator[OddWorker]:
    """A fourth decode worker; it has left when the test is over."""
    make_odd_demo(tmp_path / "odd")
    with running_odd_worker(wide_mesh, tmp_path / "odd", MODEL) as odd:
        yield odd
    until(lambda: not degraded(wide_mesh), "the worker has left")


def degraded(mesh: Mesh) -> list[dict[str, Any]]:
    return list(mesh.health()["degraded_workers"])


def test_a_worker_with_another_tokenizer_is_degraded_and_answers(
    wide_mesh: Mesh, odd_worker: OddWorker
) -> None:
    mesh = wide_mesh
    assert degraded(mesh) == []
    until(lambda: degraded(mesh), "the odd worker is known", 60)
    until(lambda: mesh.health()["decode_workers"] == 4, "the odd worker is reached")
    (found,) = degraded(mesh)
    assert (found["worker_id"], found["role"], found["reason"]) == (
        "decode-odd",
        "decode",
        "tokenizer",
    )
    assert mesh.health()["status"] == "ok"
    for router in ROUTERS:
        gauge = "pagemesh:workers_degraded"
        assert mesh.metric(router, gauge) == 1
        assert mesh.metric(router, gauge, role="decode", reason="tokenizer") == 1
        (entry,) = mesh.log(router, "worker_degraded")
        assert (entry["level"], entry["worker_id"]) == ("error", "decode-odd")
        assert "tokenizer.json" in entry["advice"]

    def complete(start: int) -> str:
        prompt = [start + 20 * i for i in range(20)]
        answer = mesh.client().completions.create(
            model=MODEL, prompt=prompt, max_tokens=32, temperature=0
        )
        return answer.choices[0].text

    # So many at a time that each worker gets some.
    with ThreadPoolExecutor(8) as pool:
        first, second = (list(pool.map(complete, range(30, 46))) for _ in range(2))
    assert first == second
    assert odd_worker.num_generated() > 0
    mesh.wait_until_idle()
