"""Workers whose arithmetic differs share no KV, and an answer goes from one to the other only where it must."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from pagemesh.core.load import PrefillRate
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import console_pb2
from tests.contract.fake_worker import FakeWorker
from tests.contract.http_answers import Answer, http_body, nothing, read
from tests.contract.router_harness import DEADLINE_S, Mesh, eventually, running_mesh
from tests.support.trace_receiver import TraceReceiver, running_receiver

AMX, FMA = "cpu-amx-bfloat16", "cpu-fma-bfloat16"
PROMPT = list(range(10, 80))
"""Four full blocks and six tokens."""

PACE = 0.01
SLOW_PREFILL = PrefillRate(0.1, 0.0, 0.0, 512, 1.0)
"""So slow that KV which is somewhere is always sooner fetched than computed."""


async def add(mesh: Mesh, worker_id: str, arithmetic: str, **engine: Any) -> FakeWorker:
    """A worker that says that it is of this class; what the fake computes is the same in all."""
    role = DECODE_ROLE if worker_id.startswith("decode") else PREFILL_ROLE
    return await mesh.add(role, worker_id, arithmetic=arithmetic, **engine)


async def ask(mesh: Mesh) -> Any:
    answer = await mesh.completions({"prompt": PROMPT, "max_tokens": 4, "seed": 7})
    assert answer.status == 200
    return answer.json()


async def ask_and_disturb(
    mesh: Mesh, disturb: Callable[[], Awaitable[object]], **body: Any
) -> Answer:
    """A streamed completion, disturbed behind its first chunks."""
    body = {"prompt": PROMPT, "max_tokens": 60, "seed": 3, "stream": True, **body}
    return await read(mesh.openai.Completions(http_body(body)), disturb, 5)


def text_of(answer: Answer) -> str:
    *chunks, end = answer.events()
    assert end == "[DONE]"
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def runs_on(mesh: Mesh, worker_id: str) -> bool:
    return mesh.workers[worker_id].engine.load().num_running > 0


async def num_changes(mesh: Mesh, reason: str) -> float:
    return await mesh.metric(f'pagemesh:arithmetic_changes_total{{reason="{reason}"}}')


async def wait_until_held(mesh: Mesh, arithmetic: str, expected: dict[str, int]) -> None:
    """Until the index knows these, and nobody else, under the names of a class."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := await mesh.holders(PROMPT, arithmetic=arithmetic)) != expected:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("prefill", "num_received"), [(FMA, 70), (AMX, 0), ("", 0)])
async def test_only_a_prefill_worker_of_the_same_arithmetic_computes_prompts(
    prefill: str, num_received: int
) -> None:
    async with running_mesh(decode=0) as mesh:
        decode = await add(mesh, "decode-0", FMA)
        await add(mesh, "prefill-0", prefill)
        await ask(mesh)
        assert decode.metric("pagemesh:kv_tokens_received_total") == num_received
        assert (await mesh.health())["degraded_workers"] == []
        # The other one was not even asked.
        assert decode.metric("pagemesh:remote_prefills_total", outcome="fallback") == 0


async def test_the_index_knows_blocks_by_the_arithmetic_that_made_them() -> None:
    async with running_mesh(decode=0, policy="round_robin") as mesh:
        for worker_id, arithmetic in (("decode-0", FMA), ("decode-1", AMX)):
            await add(mesh, worker_id, arithmetic)
        for _ in range(2):
            await ask(mesh)
        await wait_until_held(mesh, FMA, {"decode-0": 4})
        await wait_until_held(mesh, AMX, {"decode-1": 4})
        assert await mesh.holders(PROMPT) == {}


@pytest.mark.parametrize("holder", ["decode-0", "decode-1"])
async def test_a_prefix_counts_at_whoever_holds_it(holder: str) -> None:
    classes = {"decode-0": FMA, "decode-1": AMX}
    async with running_mesh(decode=0) as mesh:
        await add(mesh, holder, classes[holder])
        await ask(mesh)
        await wait_until_held(mesh, classes.pop(holder), {holder: 4})
        ((other, arithmetic),) = classes.items()
        await add(mesh, other, arithmetic)
        assert (await ask(mesh))["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


async def test_an_answer_goes_on_in_its_arithmetic_as_long_as_somebody_has_it() -> None:
    async with running_mesh(decode=0, policy="least_loaded") as mesh:
        for worker_id, arithmetic in (("decode-0", FMA), ("decode-1", AMX), ("decode-2", FMA)):
            await add(mesh, worker_id, arithmetic, seconds_per_token=PACE)
        undisturbed = text_of(await ask_and_disturb(mesh, nothing))

        async def kill_twice() -> None:
            await mesh.workers["decode-0"].kill()
            # Not the next one, which has as little to do.
            await eventually(lambda: runs_on(mesh, "decode-2"))
            assert await num_changes(mesh, "lost") == 0
            generated = mesh.workers["decode-2"].metric
            name = "vllm:generation_tokens_total"
            await eventually(lambda: generated(name, model_name="demo") > 0)
            await mesh.workers["decode-2"].kill()

        with capture_logs() as logs:
            answer = await ask_and_disturb(mesh, kill_twice)
        assert text_of(answer) == undisturbed
        assert await num_changes(mesh, "lost") == 1
        assert await mesh.num_migrated("lost") == 2
        (told,) = [log for log in logs if log["event"] == "request goes on with other arithmetic"]
        assert told["log_level"] == "warning"
        assert (told["from_worker"], told["from_arithmetic"]) == ("decode-2", FMA)
        assert (told["to_worker"], told["to_arithmetic"]) == ("decode-1", AMX)


async def test_answers_that_leave_their_arithmetic_together_count_each() -> None:
    async with running_mesh(decode=0, policy="least_loaded") as mesh:
        await add(mesh, "decode-0", FMA, seconds_per_token=PACE)
        await add(mesh, "decode-1", AMX, seconds_per_token=PACE)
        await ask_and_disturb(mesh, mesh.workers["decode-0"].kill, n=3, temperature=1)
        assert await num_changes(mesh, "lost") == 3


async def test_what_had_no_tokens_has_left_nothing() -> None:
    async with running_mesh(decode=0, policy="least_loaded") as mesh:
        # The first step takes a second.
        await add(mesh, "decode-0", FMA, seconds_per_token=1.0)
        await add(mesh, "decode-1", AMX)
        asking = asyncio.create_task(ask(mesh))
        await eventually(lambda: runs_on(mesh, "decode-0"))
        await mesh.workers["decode-0"].kill()
        await asking
        assert await mesh.num_migrated("lost") == 1
        assert await num_changes(mesh, "lost") == 0


async def test_who_added_no_token_has_not_changed_what_an_answer_goes_on_in() -> None:
    async with running_mesh(decode=0, policy="least_loaded") as mesh:
        await add(mesh, "decode-0", FMA, seconds_per_token=PACE)
        # Its first step takes long enough.
        await add(mesh, "decode-1", AMX, seconds_per_token=3.0)

        async def kill_both() -> None:
            await mesh.workers["decode-0"].kill()
            await eventually(lambda: runs_on(mesh, "decode-1"))
            assert await num_changes(mesh, "lost") == 1
            await mesh.remove("decode-0")
            await add(mesh, "decode-2", AMX)
            await add(mesh, "decode-3", FMA)
            await mesh.workers["decode-1"].kill()

        await ask_and_disturb(mesh, kill_both)
        name = "vllm:generation_tokens_total"
        assert mesh.workers["decode-3"].metric(name, model_name="demo") > 0
        assert await mesh.num_migrated("lost") == 2
        assert await num_changes(mesh, "lost") == 1


@pytest.mark.parametrize(("taker", "num_pulls", "changes"), [(FMA, 1, 0), (AMX, 0, 1)])
async def test_a_worker_that_stops_hands_its_kv_to_its_own_arithmetic_alone(
    taker: str, num_pulls: int, changes: int
) -> None:
    async with running_mesh(
        decode=0, policy="least_loaded", remote_prefill_min_tokens=None
    ) as mesh:
        for worker_id, arithmetic in (("decode-0", FMA), ("decode-1", taker)):
            await add(
                mesh, worker_id, arithmetic, seconds_per_token=PACE, prefill_rate=SLOW_PREFILL
            )
        undisturbed = text_of(await ask_and_disturb(mesh, nothing))
        answer = await ask_and_disturb(mesh, lambda: mesh.remove("decode-0"))
        assert text_of(answer) == undisturbed
        assert await mesh.num_migrated("drain") == 1
        assert await num_changes(mesh, "drain") == changes
        taken = mesh.workers["decode-1"].metric
        assert taken("pagemesh:kv_pulls_total", path="pull", outcome="complete") == num_pulls
        # The other one is not even asked.
        assert taken("pagemesh:kv_pulls_total", path="pull", outcome="failed") == 0
        assert (taken("pagemesh:kv_tokens_received_total") > 0) == (num_pulls > 0)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceReceiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with running_receiver() as receiver:
        yield receiver


@pytest.mark.parametrize("taker", [FMA, AMX])
async def test_the_trace_of_an_answer_says_that_it_left_its_arithmetic(
    receiver: TraceReceiver, taker: str
) -> None:
    async with running_mesh(
        decode=0, policy="least_loaded", otlp_traces_endpoint=receiver.address
    ) as mesh:
        await add(mesh, "decode-0", FMA, seconds_per_token=PACE)
        await add(mesh, "decode-1", taker, seconds_per_token=PACE)
        await ask_and_disturb(mesh, mesh.workers["decode-0"].kill)
        await eventually(lambda: bool(receiver.named("text_completion demo")))
        (request,) = receiver.named("text_completion demo")
        routes = [
            route.attributes["pagemesh.route.arithmetic"] for route in receiver.named("route")
        ]
        assert routes == [FMA, taker]
        told = [event for name, event in request.events if name == "arithmetic_changed"]
        if taker == FMA:
            assert told == []
            assert "pagemesh.arithmetic.changes" not in request.attributes
        else:
            assert request.attributes["pagemesh.arithmetic.changes"] == 1
            assert told == [
                {
                    "pagemesh.worker": "decode-1",
                    "pagemesh.arithmetic.before": FMA,
                    "pagemesh.route.arithmetic": AMX,
                }
            ]


async def test_the_page_and_health_name_the_arithmetic_of_workers() -> None:
    async with running_mesh(decode=0) as mesh:
        await add(mesh, "decode-0", FMA)
        assert (await mesh_object(mesh))["mixed_arithmetic"] == []
        await add(mesh, "prefill-0", AMX)
        await add(mesh, "decode-1", FMA)
        shown = await mesh_object(mesh)
        (model,) = (await mesh.health())["models"]
    assert {row["id"]: row["arithmetic"] for row in shown["workers"]} == {
        "decode-0": FMA,
        "decode-1": FMA,
        "prefill-0": AMX,
    }
    assert model["arithmetic"] == [AMX, FMA]
    (mixed,) = shown["mixed_arithmetic"]
    assert mixed["model"] == "demo"
    assert mixed["classes"] == {AMX: ["prefill-0"], FMA: ["decode-0", "decode-1"]}
    assert mixed["what"] == (
        f"Workers of demo compute with 2 kinds of arithmetic: {AMX} (prefill-0) and {FMA} (decode-0, "
        "decode-1). KV does not travel from one kind to the other, and an answer that has to move there "
        "may go on with other tokens."
    )


async def mesh_object(mesh: Mesh) -> Any:
    return (await read(mesh.console.Mesh(console_pb2.ConsoleMeshRequest()))).json()
