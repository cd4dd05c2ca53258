"""How long to the first token when another worker prefills, and how much of it is the transfer?

For each way that KV takes, over gRPC as between hosts and out of the sender's memory as on one host, a mesh
of a prefill and a decode worker that share two cores; one of them computes at a time. The same decode worker
is asked with and without a plan for a remote prefill, alternately, so that nothing else differs; every prompt
is new.
The exposed transfer is what the decode worker itself measures: from the first token's arrival to the last
verified block.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack

from kv.sessions import TimedSession
from kv.streams import fresh_prompt
from members import all_members, metric, metrics_address, plan_of
from mesh import Mesh
from random_models import make_model
from report import Report
from turns import turns

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
FLAGS = ("--prefill", "1", "--decode", "1", "--threads", "2", "--kv-cache-memory", "1")
WAYS = {"gRPC": "--no-share-kv-memory", "host memory": "--share-kv-memory"}
"""That KV takes, and what a mesh is told for it."""


def measure(report: Report, *, quick: bool) -> None:
    """All lengths in turn, by all ways, round by round."""
    with ExitStack() as stack:
        meshes = {
            way: stack.enter_context(Mesh(*FLAGS, flag, model=make_model(MODEL)))
            for way, flag in WAYS.items()
        }
        for mesh in meshes.values():
            mesh.await_ready()
        taken = asyncio.run(
            _measure(
                meshes,
                QUICK_LENGTHS if quick else LENGTHS,
                num_rounds=3 if quick else 10,
            )
        )
    _add_figures(report, taken)


class _Times:
    """Of one length by one way, in ms, round by round."""

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


class _Side:
    """One mesh."""

    def __init__(self, session: TimedSession, mesh: Mesh) -> None:
        decode = mesh.parts()["decode-0"]
        self._session = session
        self._remote = plan_of([all_members(mesh)["prefill-0"]])
        self._exposed = _Exposed(metrics_address(decode))

    async def take(self, length: int, times: _Times, *, remote: bool) -> None:
        """One prompt of so many tokens."""
        if not remote:
            times.aggregated.append(await self._first_ms(length, None))
            return
        times.disaggregated.append(await self._first_ms(length, self._remote))
        times.exposed.append(await self._exposed.next_ms())

    async def _first_ms(self, length: int, plan: decode_pb2.PrefillPlan | None) -> float:
        # The second token needs all of the KV.
        answer = await self._session.submit(fresh_prompt(length), 2, plan)
        await answer.until_over()
        if plan is not None:
            kv = answer.kv
            assert kv is not None and kv.received_token_count == length, kv
        return answer.first_ms


async def _measure(
    meshes: dict[str, Mesh], lengths: Sequence[int], num_rounds: int
) -> dict[tuple[int, str], _Times]:
    taken: dict[tuple[int, str], _Times] = defaultdict(_Times)
    async with AsyncExitStack() as stack:
        sides = {}
        for way, mesh in meshes.items():
            session = TimedSession(mesh.parts()["decode-0"].address)
            sides[way] = _Side(await stack.enter_async_context(session), mesh)
        # The first round only warms up.
        for number in range(num_rounds + 1):
            for length in lengths:
                for way, side in sides.items():
                    times = taken[length, way] if number else _Times()
                    for remote in turns((False, True), number):
                        await side.take(length, times, remote=remote)
    return taken


def _add_figures(report: Report, taken: dict[tuple[int, str], _Times]) -> None:
    for (length, way), times in taken.items():
        name = f"TTFT of {length} tokens, {way}"
        report.add(f"{name}: aggregated", "ms", times.aggregated)
        report.add(f"{name}: disaggregated", "ms", times.disaggregated)
        report.add(f"{name}: exposed transfer", "ms", times.exposed)
        shares = [
            exposed / first
            for exposed, first in zip(times.exposed, times.disaggregated, strict=True)
        ]
        report.add(
            f"{name}: exposed transfer's share",
            "",
            shares,
            aim=MOST_EXPOSED if length >= LEAST_HIDDEN else None,
        )
