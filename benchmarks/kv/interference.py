"""How evenly do running streams get their tokens while long prompts arrive?

Two workers that share two cores, whatever the mesh: aggregated they are two decode workers with half of the
streams and half of the long prompts each, disaggregated a decode worker with all streams and a prefill
worker with all long prompts, whose KV goes over gRPC as between hosts. The same prompts come at the same
times. Nobody routes: requests go to the workers themselves, perfectly balanced, which flatters the
aggregated mesh. A third mesh is aggregated with smaller steps, which trades the long prompts' time for the
streams'.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

from kv.sessions import Answer, TimedSession
from kv.streams import fresh_prompt, gaps_ms, percentile, start_streams
from members import all_members, plan_of
from mesh import Mesh
from random_models import make_model
from report import Report
from turns import turns

from pagemesh.v1 import decode_pb2

MODEL = "160M-long"
NUM_STREAMS = 16
STREAM_PROMPT = 64
LONG_PROMPT, LONG_ANSWER = 2048, 8
SPACING = 1.5
"""Between two long prompts, in times that a prefill worker takes for one: it is busy two thirds of the time."""
SETTLE_S = 1.0
LEAST_GAIN = 3.0

_COMMON = ("--threads", "2", "--kv-cache-memory", "1")
AGGREGATED = ("--prefill", "0", "--decode", "2", *_COMMON)
MESHES = {
    "aggregated": AGGREGATED,
    "aggregated, steps of 128 tokens": (*AGGREGATED, "--max-num-batched-tokens", "128"),
    "disaggregated": ("--prefill", "1", "--decode", "1", "--no-share-kv-memory", *_COMMON),
}


@dataclass
class Side:
    """A mesh with what came out of it, round by round."""

    sessions: list[TimedSession]
    plan: decode_pb2.PrefillPlan | None
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    """Of the long prompts."""

    async def long_prompt(self, number: int) -> Answer:
        """Submit one; it goes to the next worker each time."""
        session = self.sessions[number % len(self.sessions)]
        return await session.submit(fresh_prompt(LONG_PROMPT), LONG_ANSWER, self.plan)

    async def run(self, num_long: int, spacing_s: float) -> None:
        """Measure the streams while so many long prompts arrive."""
        num_tokens = 64 + int((num_long + 2) * spacing_s * 100)
        streams = await start_streams(self.sessions, NUM_STREAMS, STREAM_PROMPT, num_tokens)
        await asyncio.sleep(SETTLE_S)
        begin = time.perf_counter()
        long_ones = []
        for number in range(num_long):
            await asyncio.sleep(begin + number * spacing_s - time.perf_counter())
            long_ones.append(await self.long_prompt(number))
        await asyncio.sleep(begin + num_long * spacing_s - time.perf_counter())
        end = time.perf_counter()
        gaps = gaps_ms(streams, begin, end)
        self.p50_ms.append(percentile(gaps, 0.5))
        self.p99_ms.append(percentile(gaps, 0.99))
        self.tokens_per_s.append(len(gaps) / (end - begin))
        await asyncio.gather(*(answer.until_over() for answer in long_ones))
        self.first_ms += [answer.first_ms for answer in long_ones]
        for session in self.sessions:
            await session.cancel_all()


def measure(report: Report, *, quick: bool) -> None:
    """All meshes in turn, round by round; those that wait for their turn compute nothing."""
    with ExitStack() as stack:
        meshes = {
            name: stack.enter_context(Mesh(*flags, model=make_model(MODEL)))
            for name, flags in MESHES.items()
        }
        for mesh in meshes.values():
            mesh.await_ready()
        sides = asyncio.run(
            _measure(meshes, num_rounds=1 if quick else 5, num_long=3 if quick else 8)
        )
    for name, side in sides.items():
        figure = f"{NUM_STREAMS} streams beside long prompts, {name}"
        report.add(f"{figure}: ITL p50", "ms", side.p50_ms)
        report.add(f"{figure}: ITL p99", "ms", side.p99_ms)
        report.add(f"{figure}: throughput of the streams", "tokens/s", side.tokens_per_s)
        report.add(f"{figure}: TTFT of {LONG_PROMPT} tokens", "ms", side.first_ms)
    ours = sides.pop("disaggregated")
    for name, side in sides.items():
        report.add(
            f"ITL p99, {name} over disaggregated",
            "",
            [theirs / mine for theirs, mine in zip(side.p99_ms, ours.p99_ms, strict=True)],
            at_least=LEAST_GAIN if name == "aggregated" else None,
        )


async def _measure(meshes: dict[str, Mesh], num_rounds: int, num_long: int) -> dict[str, Side]:
    async with AsyncExitStack() as stack:
        sides = {}
        for name, mesh in meshes.items():
            sides[name] = await _side(stack, mesh)
        spacing_s = SPACING * await _seconds_of_a_prefill(sides["disaggregated"])
        for number in range(num_rounds):
            for side in turns(list(sides.values()), number):
                await side.run(num_long, spacing_s)
    return sides


async def _side(stack: AsyncExitStack, mesh: Mesh) -> Side:
    workers = all_members(mesh)
    prefill = [worker for name, worker in workers.items() if name.startswith("prefill")]
    decode = [worker for name, worker in sorted(workers.items()) if name.startswith("decode")]
    sessions = [await stack.enter_async_context(TimedSession(worker.address)) for worker in decode]
    return Side(sessions, plan_of(prefill) if prefill else None)


async def _seconds_of_a_prefill(side: Side) -> float:
    """For a long prompt, with nothing beside it; the first one warms up."""
    seconds = 0.0
    for number in range(2):
        answer = await side.long_prompt(number)
        await answer.until_over()
        seconds = answer.first_ms / 1e3
    return seconds
