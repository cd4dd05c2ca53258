"""What a test of faults needs: requests whose KV comes over a link, and what must hold after each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.support.link.running import RunningLink
from tests.support.worker_process import WorkerProcess
from tests.support.workers import Received, RouterSession

NUM_TOKENS = 8
BLOCK_SIZE = 16
PROMPT = tuple(20 + (7 * i) % 400 for i in range(650))
LONG_PROMPT = tuple(20 + (11 * i) % 400 for i in range(1900))
WHOLE_BLOCKS_PROMPT = LONG_PROMPT[:1888]
"""Even its last block, which may come in a message of its own, is worth asking the next worker for.
So long that a sender whose messages have to wait, and grow meanwhile, still needs several."""
SECOND_TURN = PROMPT + LONG_PROMPT[:600]

# Far from greedy: of a model this small, the likeliest token is often the same for any prompt.
SAMPLING = types_pb2.SamplingParams(
    max_tokens=NUM_TOKENS, temperature=1.5, seed=1234, ignore_eos=True
)

IMPORT_FAILURES = "pagemesh:kv_import_failures_total"
REJECTED = "pagemesh:kv_rejected_total"


async def until(get: Callable[[], bool], what: str, within: float = 10.0) -> None:
    """Wait until something out of other processes holds; fail when that takes longer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not await asyncio.to_thread(get):
        assert loop.time() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.01)


async def assert_blocks_free(worker: WorkerProcess, within: float = 10.0) -> None:
    """Nobody owns a block of a worker's any more."""
    await until(
        lambda: worker.num_used_blocks() == 0, f"{worker.worker_id} has all its blocks", within
    )


class Pair:
    """Two workers and the link to the first."""

    def __init__(self, prefill: WorkerProcess, decode: WorkerProcess, link: RunningLink) -> None:
        self.prefill = prefill
        self.decode = decode
        self.link = link
        self._salts = itertools.count(1)
        self._handles = itertools.count(1)
        self._undisturbed: dict[tuple[int, ...], list[int]] = {}

    def logged(self) -> dict[str, str]:
        """Everything that the workers said so far, by their names."""
        return self.prefill.logged() | self.decode.logged()

    def revive(self) -> None:
        """Start again who was killed."""
        for worker in (self.prefill, self.decode):
            if worker.process.poll() is not None:
                worker.start().wait_until_serving()

    @property
    def over_link(self) -> types_pb2.PeerWorker:
        """The prefill worker, behind the link that spoils streams."""
        return self.prefill.peer(self.link.grpc_address)

    @property
    def over_tcp(self) -> types_pb2.PeerWorker:
        """The prefill worker, behind the link that passes on bytes."""
        return self.prefill.peer(self.link.tcp_address)

    def session(self) -> RouterSession:
        """A router's end; an async context."""
        return RouterSession(self.decode.address)

    def new_salt(self) -> bytes:
        """Under it, nobody has anything cached."""
        return next(self._salts).to_bytes(4, "big")

    async def submit(
        self,
        session: RouterSession,
        *workers: types_pb2.PeerWorker,
        prompt: Sequence[int] = PROMPT,
        source: kv_transfer_pb2.KvSource | None = None,
        salt: bytes | None = None,
    ) -> int:
        """Submit a prompt, to be prefilled by these; gives its handle. Without a salt, nobody has it cached."""
        handle = next(self._handles)
        plan = decode_pb2.PrefillPlan(workers=workers, source=source)
        await session.submit(
            handle,
            prompt,
            sampling=SAMPLING,
            plan=plan if workers or source else None,
            cache_salt=self.new_salt() if salt is None else salt,
            time_limit=60.0,
        )
        return handle

    async def undisturbed(
        self, session: RouterSession, prompt: Sequence[int] = PROMPT
    ) -> list[int]:
        """The tokens of a request that is computed in one place."""
        key = tuple(prompt)
        if key not in self._undisturbed:
            received = await session.over(await self.submit(session, prompt=prompt))
            assert len(received.token_ids) == NUM_TOKENS
            self._undisturbed[key] = received.token_ids
        return self._undisturbed[key]

    async def assert_same_tokens(
        self, session: RouterSession, handle: int, prompt: Sequence[int] = PROMPT
    ) -> Received:
        """The request ends, and with the tokens that it has without a fault."""
        received = await session.over(handle)
        assert received.error is None
        assert received.token_ids == await self.undisturbed(session, prompt)
        return received

    async def assert_all_blocks_free(self, within: float = 10.0) -> None:
        """Nobody who lives owns a block any more."""
        for worker in (self.prefill, self.decode):
            if worker.process.poll() is None:
                await assert_blocks_free(worker, within)

    async def hold_first_turn(
        self, session: RouterSession, link: RunningLink
    ) -> tuple[kv_transfer_pb2.KvSource, bytes]:
        """Have the decode worker hold the beginning of SECOND_TURN, which nobody else does.

        Gives who that is, as it is reached over a link to it, and the salt under which it holds that.
        """
        salt = self.new_salt()
        await self.assert_same_tokens(session, await self.submit(session, salt=salt))
        source = kv_transfer_pb2.KvSource(
            worker=self.decode.peer(link.grpc_address), block_count=len(PROMPT) // BLOCK_SIZE
        )
        return source, salt

    def num_complete(self) -> float:
        """Prompts whose KV came from the prefill worker to the end."""
        return self.decode.metric("pagemesh:remote_prefills_total", outcome="complete")

    def failures(self, reason: str) -> float:
        """Streams that the decode worker gave up for a reason."""
        return self.decode.metric(IMPORT_FAILURES, reason=reason)

    def all_failures(self) -> float:
        """For whatever reason."""
        return self.decode.metric(IMPORT_FAILURES)
