"""Which slots of the index on Redis this kvstore may write, and for which workers.

A slot's token is its owner's proof: it changes whenever the worker is added or cleared, by whomever, so that
calls which come late find another one and change nothing.
"""

from __future__ import annotations

import itertools
import secrets
from typing import NamedTuple

import structlog

from pagemesh.errors import FailedPreconditionError, UnavailableError
from pagemesh.kvstore.redis_scripts import RedisScripts

_log = structlog.get_logger(__name__)

LEASE_MS = 60_000
"""How long the slots of a kvstore stay its own after its last housekeeping."""

SWEEPING_MS = 5_000
"""How long a kvstore that sweeps may be silent before another one goes on."""

_NOT_MINE, _NO_SLOT = -1, -2


class Slot(NamedTuple):
    """The right to write for one worker."""

    number: int
    token: str


class SlotFacts(NamedTuple):
    """What the server knows of a worker."""

    slot: Slot
    max_blocks: int
    num_blocks: int
    """Blocks that it said it holds, those that the index gave up included."""
    num_evicted: int
    """Blocks that the index gave up."""
    names_xor: int


class RedisSlots:
    """The slots of one kvstore. All methods raise UnavailableError while the server does not answer."""

    def __init__(self, scripts: RedisScripts) -> None:
        self._scripts = scripts
        self._replica = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._slots: dict[str, Slot] = {}
        # Workers and tokens that may still have a slot, although they should not.
        self._dropped: list[tuple[str, str]] = []

    async def add(self, worker_id: str, max_blocks: int) -> None:
        """Take a new slot for a worker, whoever had one for it."""
        self._slots.pop(worker_id, None)
        token = self._new_token()
        try:
            number = await self._scripts.run(
                "add", worker_id, token, self._replica, max_blocks, LEASE_MS
            )
        except BaseException:
            self._dropped.append((worker_id, token))
            raise
        self._slots[worker_id] = Slot(_given(number), token)

    async def drop(self, worker_id: str) -> None:
        """Give a worker's slot back, now or by `drop_late`. One that another kvstore took stays."""
        slot = self._slots.pop(worker_id, None)
        if slot is None:
            return
        self._dropped.append((worker_id, slot.token))
        try:
            await self.drop_late()
        except UnavailableError:
            _log.info("worker_dropped_later", worker_id=worker_id)

    async def drop_late(self) -> None:
        """Give back the slots that could not be given back before."""
        while self._dropped:
            dropped = self._dropped[0]
            await self._scripts.run("drop", *dropped, self._new_token())
            if dropped in self._dropped:
                self._dropped.remove(dropped)

    async def renew(self, worker_id: str) -> None:
        """Take another slot for a worker in place of the one with its blocks.

        When that fails, the worker is no longer known.
        """
        slot, token = self.own(worker_id), self._new_token()
        try:
            number = await self.write("clear", worker_id, token)
        except BaseException:
            self._slots.pop(worker_id, None)
            self._dropped += [(worker_id, slot.token), (worker_id, token)]
            raise
        self._slots[worker_id] = Slot(_given(number), token)

    async def write(self, script: str, worker_id: str, *arguments: bytes | str | int) -> int:
        """Run a script that proves itself by slot and token."""
        slot = self.own(worker_id)
        answer: int = await self._scripts.run_in_turn(script, *slot, *arguments)
        if answer == _NOT_MINE:
            if self._slots.get(worker_id) == slot:
                del self._slots[worker_id]
            raise unknown_worker(worker_id)
        return answer

    async def sweep(self, max_blocks: int) -> bool:
        """Do a part of what is to be done about retired slots, and renew the lease; whether there is more."""
        return bool(
            await self._scripts.run("sweep", self._replica, LEASE_MS, SWEEPING_MS, max_blocks)
        )

    async def facts(self, worker_id: str) -> SlotFacts:
        """Of a worker of this kvstore or of another."""
        answer = await self._scripts.run("facts", worker_id)
        own = self._slots.get(worker_id)
        if not answer or (own is not None and own.token != answer[1].decode()):
            raise unknown_worker(worker_id)
        number, token, max_blocks, num_blocks, num_evicted, names_xor = answer
        return SlotFacts(
            Slot(int(number), token.decode()),
            int(max_blocks),
            int(num_blocks),
            int(num_evicted),
            int.from_bytes(names_xor, "big"),
        )

    def own(self, worker_id: str) -> Slot:
        """The slot of a worker of this kvstore."""
        slot = self._slots.get(worker_id)
        if slot is None:
            raise unknown_worker(worker_id)
        return slot

    def _new_token(self) -> str:
        return f"{self._replica}.{next(self._numbers)}"


def unknown_worker(worker_id: str) -> FailedPreconditionError:
    """That a worker was not added here, or that the index has lost it."""
    return FailedPreconditionError(
        f"worker {worker_id!r} is not registered", reason="UNKNOWN_WORKER"
    )


def _given(number: int) -> int:
    if number == _NO_SLOT:
        raise UnavailableError(
            "the index has no slot left: too many wait to be swept", reason="NO_SLOT"
        )
    return number
