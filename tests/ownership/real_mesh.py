"""A decode worker, two prefill workers and a router's sessions, with gRPC between all of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import grpc

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.fakes.engine import expected_tokens
from tests.ownership.events import (
    Break,
    Cancel,
    Event,
    HangUp,
    Kill,
    Pause,
    Route,
    Slow,
    Stall,
    Submit,
    draw_prompt,
)
from tests.ownership.real_worker import BLOCK_SIZE, RealWorker
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession

DECODE, PREFILLS = 0, (1, 2)
DEADLINE = 10.0
"""Seconds in which everything has to come to its end when nothing is in its way any more."""

LONG = 100
"""Tokens of a request that goes on for long unless it is ended."""
HANG_UP_STEP = 0.05
HANG_UP_DEADLINE = 2.5
"""Seconds: less than a long request would take with such steps."""


@dataclass
class Submitted:
    """A request of a router's client."""

    handle: int
    session: RouterSession
    expected: tuple[int, ...]
    has_time: bool
    was_cancelled: bool = False

    @property
    def is_over(self) -> bool:
        return self.session[self.handle].is_over or self.session.has_ended

    def check(self) -> None:
        """It has ended as it may."""
        received = self.session[self.handle]
        tokens = tuple(received.token_ids)
        assert tokens == self.expected[: len(tokens)], f"request {self.handle}: {tokens}"
        if received.is_finished:
            assert tokens == self.expected, f"request {self.handle} ended early: {received}"
        elif received.finish_reason == types_pb2.FINISH_REASON_CANCELLED:
            assert self.was_cancelled, f"request {self.handle}: nobody cancelled it"
        elif received.error is not None:
            is_late = received.error.reason == "DEADLINE_EXCEEDED"
            assert is_late and not self.has_time, f"request {self.handle}: {received.error}"
        else:
            assert self.session.has_ended, f"request {self.handle} has not ended"


class RealMesh:
    """Plays events, and says whether everything ended well."""

    def __init__(self, stack: AsyncExitStack, *, shares: bool) -> None:
        self._stack = stack
        self.workers = [
            RealWorker(DECODE_ROLE, "decode", 40, shares=shares),
            *(
                RealWorker(PREFILL_ROLE, f"prefill-{index}", 20, shares=shares)
                for index in PREFILLS
            ),
        ]
        self._session: RouterSession | None = None
        self._requests: list[Submitted] = []
        self._num_requests = 0

    async def start(self) -> None:
        for worker in self.workers:
            await worker.start(self._stack)

    async def play(self, event: Event) -> None:
        match event:
            case Submit():
                await self._submit(event)
            case Cancel():
                await self._cancel(event.number)
            case Break():
                self.workers[event.number % len(self.workers)].link.sever()
            case Kill():
                await self.workers[event.worker].kill()
            case Stall():
                link = self.workers[event.worker].link
                (link.flow if event.ends else link.stall)()
            case Slow():
                pace = self.workers[event.worker].engine.pace
                pace.step, pace.copy = event.step_seconds, event.copy_seconds
            case HangUp():
                await self._hang_up()
            case Pause():
                await asyncio.sleep(event.seconds)

    async def finish(self) -> None:
        """Clear all obstacles, let everything come to its end, and check that it did."""
        for worker in self.workers:
            worker.link.flow()
            worker.engine.pace.step = worker.engine.pace.copy = 0.0
        requests, self._requests = self._requests, []
        await wait_until(lambda: all(r.is_over for r in requests), "the end of all", DEADLINE)
        for request in requests:
            request.check()
        for worker in self.workers:
            await worker.check(DEADLINE)

    async def _submit(self, event: Submit) -> None:
        session = await self._open_session()
        leader = 0
        for number in range(1 + event.num_forks):
            self._num_requests += 1
            handle, seed = self._num_requests, event.seed + 7 * number
            expected = expected_tokens(event.prompt, event.max_tokens, seed)
            if event.stops:
                expected = expected[:1]
            sampling = types_pb2.SamplingParams(
                max_tokens=event.max_tokens,
                seed=seed,
                stop_token_ids=expected if event.stops else (),
            )
            try:
                await session.submit(
                    handle,
                    event.prompt,
                    sampling=sampling,
                    time_limit=event.seconds,
                    plan=None if leader else self._plan(event),
                    fork_of=leader,
                    priority=event.priority,
                )
            except (grpc.RpcError, asyncio.InvalidStateError):
                # The session broke just now.
                return
            self._requests.append(Submitted(handle, session, expected, event.seconds > 1))
            leader = leader or handle

    def _plan(self, event: Submit) -> decode_pb2.PrefillPlan | None:
        if not event.routes:
            return None
        plan = decode_pb2.PrefillPlan()
        for route in event.routes:
            if route.kind == "prefill":
                plan.workers.append(self._peer(event, route.worker))
            source = route.worker if route.kind == "fetch" else route.source
            if source is not None:
                num_blocks = len(event.prompt) // BLOCK_SIZE
                holder = kv_transfer_pb2.KvSource(
                    worker=self._peer(event, source), block_count=num_blocks
                )
                plan.source.CopyFrom(holder)
        return plan

    def _peer(self, event: Submit, worker: int) -> types_pb2.PeerWorker:
        known = self.workers[worker]
        return known.stale_peer if event.is_stale else known.peer

    async def _open_session(self) -> RouterSession:
        if self._session is None or self._session.has_ended:
            link = self.workers[DECODE].link
            link.flow()  # for the submission not to wait for the connection
            session = RouterSession(link.address)
            self._session = await self._stack.enter_async_context(session)
        return self._session

    async def _hang_up(self) -> None:
        """All work ends at once, also what would have gone on for long or waits for a stalled sender."""
        if self._session is None:
            return
        for worker in self.workers:
            worker.engine.pace.step = HANG_UP_STEP
        self._session.call.cancel()
        await wait_until(lambda: self._session is None or self._session.has_ended, "its end")
        # Who is behind a stalled link cannot know, nor those who work for it.
        if not self.workers[DECODE].link.is_stalled:
            for worker in self.workers:
                if not worker.link.is_stalled:
                    await worker.check_idle(HANG_UP_DEADLINE)
        for worker in self.workers:
            worker.engine.pace.step = 0.0

    async def _cancel(self, number: int) -> None:
        if self._requests:
            request = self._requests[-1 - number % len(self._requests)]
            request.was_cancelled = True
            with suppress(grpc.RpcError, asyncio.InvalidStateError):
                await request.session.cancel(request.handle)


@asynccontextmanager
async def running_mesh(*, shares: bool) -> AsyncIterator[RealMesh]:
    """All workers are there; in the end each of them is closed and has lost nothing."""
    async with AsyncExitStack() as stack:
        mesh = RealMesh(stack, shares=shares)
        await mesh.start()
        yield mesh


def draw_event(rng: random.Random) -> Event:
    """Mostly, somebody wants something, or what is going on goes on."""
    roll = rng.random()
    if roll < 0.4:
        return _draw_submit(rng)
    if roll < 0.5:
        return Cancel(rng.randrange(6))
    if roll < 0.54:
        return Break(rng.randrange(3))
    if roll < 0.56:
        return Kill(rng.choice((DECODE, *PREFILLS)))
    if roll < 0.60:
        return HangUp()
    if roll < 0.67:
        return Stall(rng.randrange(3), ends=rng.random() < 0.3)
    if roll < 0.73:
        return Slow(
            rng.randrange(3), rng.choice((0, 0, 0.001, 0.004)), rng.choice((0, 0.0005, 0.002))
        )
    return Pause(rng.choice((0, 0, 0.001, 0.003, 0.01)))


def _draw_submit(rng: random.Random) -> Submit:
    routes = tuple(
        Route("prefill", rng.choice(PREFILLS), rng.choice((None, None, DECODE, *PREFILLS)))
        for _ in range(rng.choice((0, 1, 1, 1, 2)))
    )
    if not routes and rng.random() < 0.5:
        routes = (Route("fetch", rng.choice(PREFILLS)),)
    return Submit(
        draw_prompt(rng, BLOCK_SIZE, 12, 5),
        max_tokens=rng.choice((1, 2, 8, 8, 20, 20, LONG)),
        seed=rng.randrange(2),
        priority=rng.randrange(3),
        num_forks=rng.choice((0, 0, 0, 0, 1, 2)),
        stops=rng.random() < 0.15,
        routes=routes,
        seconds=rng.choice((60.0,) * 9 + (0.02,)),
        is_stale=rng.random() < 0.1,
    )
