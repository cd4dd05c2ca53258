"""How long to the first token when another worker prefills, and how much of it is the transfer?

One mesh of a prefill and a decode worker with a thread each. The same decode worker is asked with and
without a plan for a remote prefill, alternately, so that nothing else differs; every prompt is new.
The exposed transfer is what the decode worker itself measures: from the first token's arrival to the last
verified block.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from kv.members import members, metric, metrics_address, plan_of
from kv.sessions import WorkerSession
from mesh import Mesh, Part
from random_models import LONG_SHAPES, make_model
from report import Report
from workload import make_prompt

from pagemesh.v1 import decode_pb2

MODEL = "160M-long"
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
QUICK_LENGTHS = (256, 1024, 4096)
LEAST_HIDDEN = 1024
"""Tokens from which on the exposed transfer has an aim."""
MOST_EXPOSED = 0.1
"""Of the time to the first token."""
EXPOSED = "pagemesh:kv_transfer_exposed_seconds"
_TRIES = 100
FLAGS = ("--threads", "2", "--kv-cache-memory", "1")


def measure(report: Report, *, quick: bool) -> None:
    """All lengths in turn, round by round."""
    flags = ("--prefill", "1", "--decode", "1", *FLAGS)
    with Mesh(*flags, model=make_model(MODEL)) as mesh:
        mesh.await_ready()
        taken = asyncio.run(
            _measure(
                mesh.parts(), QUICK_LENGTHS if quick else LENGTHS, num_rounds=3 if quick else 10
            )
        )
    _add_figures(report, taken)


class _Times:
    """Of one length, in ms, round by round."""

    def __init__(self) -> None:
        self.aggregated: list[float] = []
        self.disaggregated: list[float] = []
        self.exposed: list[float] = []


class _Exposed:
    """The exposed part of one transfer after the other, by a worker's metrics."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._count = metric(address, f"{EXPOSED}_count")
        self._seconds = metric(address, f"{EXPOSED}_sum")

    async def next_ms(self) -> float:
        """Of the transfer that just ended; RuntimeError when it does not appear."""
        for _ in range(_TRIES):
            if metric(self._address, f"{EXPOSED}_count") == self._count + 1:
                before, self._seconds = self._seconds, metric(self._address, f"{EXPOSED}_sum")
                self._count += 1
                return (self._seconds - before) * 1e3
            await asyncio.sleep(0.01)
        raise RuntimeError(f"{EXPOSED} does not count a transfer that has ended")


async def _measure(
    parts: dict[str, Part], lengths: Sequence[int], num_rounds: int
) -> dict[int, _Times]:
    taken: dict[int, _Times] = defaultdict(_Times)
    decode = parts["decode-0"]
    remote = plan_of([members(decode.flags["--kvstore"])["prefill-0"]])
    seeds = count(1)
    exposed = _Exposed(metrics_address(decode))
    async with WorkerSession(decode.address) as session:

        async def first_ms(length: int, plan: decode_pb2.PrefillPlan | None) -> float:
            prompt = make_prompt(length, LONG_SHAPES[MODEL].vocab_size, next(seeds))
            # The second token needs all of the KV.
            answer = await session.submit(prompt, 2, plan)
            await answer.until_over()
            if plan is not None:
                kv = answer.kv
                assert kv is not None and kv.received_token_count == length, kv
            return answer.first_ms

        # The first round only warms up.
        for number in range(num_rounds + 1):
            for length in lengths:
                times = taken[length] if number else _Times()
                for plan in (None, remote) if number % 2 else (remote, None):
                    milliseconds = await first_ms(length, plan)
                    if plan is None:
                        times.aggregated.append(milliseconds)
                    else:
                        times.disaggregated.append(milliseconds)
                        times.exposed.append(await exposed.next_ms())
    return taken


def _add_figures(report: Report, taken: dict[int, _Times]) -> None:
    for length, times in taken.items():
        name = f"TTFT of {length} tokens"
        report.add(f"{name}, aggregated", "ms", times.aggregated)
        report.add(f"{name}, disaggregated", "ms", times.disaggregated)
        report.add(f"{name}, exposed transfer", "ms", times.exposed)
        shares = [
            exposed / first
            for exposed, first in zip(times.exposed, times.disaggregated, strict=True)
        ]
        report.add(
            f"{name}, exposed transfer's share",
            "",
            shares,
            aim=MOST_EXPOSED if length >= LEAST_HIDDEN else None,
        )
