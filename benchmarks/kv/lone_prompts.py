"""What does a lone prompt lose by disaggregation, when workers of a host share its cores?

A mesh of one decode worker, which has all cores, and one of a prefill and a decode worker, each with half of them:
the latter computes the prompt on the prefill worker, or on the decode worker itself. Only one prompt is computed at
a time; every one is new.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from typing import NamedTuple

from kv.sessions import TimedSession
from members import all_members, plan_of
from mesh import Mesh
from random_models import SHAPES, make_model
from report import Report
from turns import turns
from workload import make_prompt

from pagemesh.v1 import decode_pb2

MODEL = "10M"
LENGTHS = (256, 1024, 3072)
QUICK_LENGTHS = (1024,)
MOST_LOST = 1.1
"""Time to the first token, over that of the aggregated worker."""
SETTLE_S = 0.1
"""Behind each prompt: its last token and what it made known are no part of the next one's time."""

_SEEDS = count(1)
_COMMON = ("--threads", str(len(os.sched_getaffinity(0))), "--kv-cache-memory", "1")
AGGREGATED = ("--prefill", "0", "--decode", "1", *_COMMON)
DISAGGREGATED = ("--prefill", "1", "--decode", "1", *_COMMON)


class _Side(NamedTuple):
    """One way to have a prompt computed."""

    session: TimedSession
    plan: decode_pb2.PrefillPlan | None

    async def first_ms(self, length: int) -> float:
        """The time to the first token of a prompt with so many."""
        prompt = make_prompt(length, SHAPES[MODEL].vocab_size, next(_SEEDS))
        answer = await self.session.submit(prompt, 2, self.plan)
        await answer.until_over()
        await asyncio.sleep(SETTLE_S)
        return answer.first_ms


def measure(report: Report, *, quick: bool) -> None:
    """All lengths in turn, by all ways, round by round."""
    with ExitStack() as stack:
        aggregated, disaggregated = (
            stack.enter_context(Mesh(*flags, model=make_model(MODEL)))
            for flags in (AGGREGATED, DISAGGREGATED)
        )
        for mesh in (aggregated, disaggregated):
            mesh.await_ready()
        lengths = QUICK_LENGTHS if quick else LENGTHS
        taken = asyncio.run(_measure(aggregated, disaggregated, lengths, 5 if quick else 30))
    for length, sides in taken.items():
        figure = f"TTFT of a lone prompt of {length} tokens"
        for name, samples in sides.items():
            report.add(f"{figure}, {name}", "ms", samples)
        for name in ("remote", "local"):
            ratios = [
                ours / alone for ours, alone in zip(sides[name], sides["aggregated"], strict=True)
            ]
            report.add(f"{figure}, {name} over aggregated", "", ratios, aim=MOST_LOST)


async def _measure(
    aggregated: Mesh, disaggregated: Mesh, lengths: tuple[int, ...], num_rounds: int
) -> dict[int, dict[str, list[float]]]:
    taken: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with AsyncExitStack() as stack:
        alone, shared = [
            await stack.enter_async_context(TimedSession(mesh.parts()["decode-0"].address))
            for mesh in (aggregated, disaggregated)
        ]
        plan = plan_of([all_members(disaggregated)["prefill-0"]])
        sides = {
            "aggregated": _Side(alone, None),
            "remote": _Side(shared, plan),
            "local": _Side(shared, None),
        }
        # The first two rounds only warm up.
        for number in range(num_rounds + 2):
            for length in lengths:
                for name in turns(list(sides), number):
                    first_ms = await sides[name].first_ms(length)
                    if number >= 2:
                        taken[length][name].append(first_ms)
    return taken
