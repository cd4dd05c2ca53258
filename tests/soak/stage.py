"""Where the soak plays: workers of the demo model, a link in front of every sender, and one session."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.support.link.running import RunningLink, running_link
from tests.support.worker_process import WorkerProcess, worker_processes
from tests.support.workers import Received, RouterSession

ROLES = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
# Small steps make many messages, and small pools evict and make others wait.
ARGUMENTS = ("--max-num-batched-tokens", "128", "--max-num-seqs", "16", "--kv-cache-memory", "0.04")
IN_MESSAGES = "--no-share-kv-memory"

POLL_S = 0.01


class LostError(Exception):
    """The decode worker went away with the request."""


class Stage:
    """Workers, links and the session, which is opened again when the decode worker was killed."""

    def __init__(
        self, senders: list[WorkerProcess], decode: WorkerProcess, links: list[RunningLink]
    ) -> None:
        self.senders = senders
        self.decode = decode
        self.links = links
        self.is_up = asyncio.Event()
        self._session: RouterSession | None = None
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self._num_handles = 0

    @property
    def workers(self) -> list[WorkerProcess]:
        """All of them."""
        return [*self.senders, self.decode]

    async def open_session(self) -> None:
        """Begin, or begin anew after the end of the one before."""
        await self.close_session()
        self._session = await RouterSession(self.decode.address).__aenter__()
        self.is_up.set()

    async def close_session(self) -> None:
        """Nothing can be asked until it is opened again."""
        self.is_up.clear()
        if self._session is not None:
            await self._session.__aexit__()
            self._session = None

    def draw_plan(self, draws: random.Random) -> decode_pb2.PrefillPlan:
        """Up to three attempts over links, now and then with somebody to pull from first."""
        plan = decode_pb2.PrefillPlan()
        for _ in range(draws.choice((1, 2, 2, 3, 3))):
            plan.workers.append(self._draw_sender(draws))
        if draws.random() < 0.3:
            source = kv_transfer_pb2.KvSource(
                worker=self._draw_sender(draws), block_count=draws.randrange(1, 40)
            )
            plan.source.CopyFrom(source)
            if draws.random() < 0.5:
                del plan.workers[:]
        return plan

    def _draw_sender(self, draws: random.Random) -> types_pb2.PeerWorker:
        number = draws.randrange(len(self.senders))
        return self.senders[number].peer(self.links[number].grpc_address)

    async def ask(
        self,
        prompt: tuple[int, ...],
        sampling: types_pb2.SamplingParams,
        *,
        plan: decode_pb2.PrefillPlan | None,
        salt: bytes,
        seconds: float,
        cancel_after: float | None = None,
    ) -> Received:
        """Run a request to its end; LostError when the decode worker is, TimeoutError when it hangs."""
        await self.is_up.wait()
        session = self._session
        assert session is not None
        self._num_handles += 1
        handle = self._num_handles
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        try:
            async with self._writing:
                await session.submit(
                    handle,
                    prompt,
                    sampling=sampling,
                    plan=plan,
                    cache_salt=salt,
                    time_limit=seconds,
                )
            while not session[handle].is_over:
                if session.has_ended:
                    raise LostError
                if loop.time() - begun_at > seconds + 5.0:
                    raise TimeoutError
                if cancel_after is not None and loop.time() - begun_at > cancel_after:
                    async with self._writing:
                        await session.cancel(handle)
                    cancel_after = None
                await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise
        except Exception as error:  # the stream was written to when it had just ended
            raise LostError from error
        return session[handle]


@contextmanager
def running_stage(folder: Path, *, share_memory: bool) -> Iterator[Stage]:
    """Everything started; ended at the end."""
    arguments = ARGUMENTS if share_memory else (*ARGUMENTS, IN_MESSAGES)
    with ExitStack() as stack:
        workers = stack.enter_context(worker_processes(folder, ROLES, *arguments))
        *senders, decode = workers
        links = [stack.enter_context(running_link(sender.address)) for sender in senders]
        yield Stage(senders, decode, links)
