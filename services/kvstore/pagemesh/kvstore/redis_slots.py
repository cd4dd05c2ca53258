"""Which slots of the index on Redis this kvstore may write, for which workers, and what their masks say.

A slot's token is its owner's proof: it changes whenever the worker is added or cleared, by whomever, so that
calls which come late find another one and change nothing. The masks that the index answers a lookup with tell who
holds how many leading blocks.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import structlog

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE, CacheDigest
from pagemesh.errors import UnavailableError
from pagemesh.kvstore.index import NOTHING_HELD, not_indexed
from pagemesh.kvstore.redis_client import RedisScripts


@dataclass(frozen=True)
class SlotTable:
    """Who has which slot, at one moment."""

    version: str | bytes = "unknown"
    """Another one whenever the table is another."""
    workers: Mapping[int, str] = field(default_factory=dict)
    """worker_id by slot."""

    @cached_property
    def mask(self) -> int:
        """The bits of all its slots."""
        return sum(1 << slot for slot in self.workers)


class LeadingHolders:
    """Narrowed down block by block: give it the masks of a lookup, in one or several parts."""

    def __init__(self) -> None:
        self._table: SlotTable | None = None
        self._holders = 0
        self._depth = 0
        self._num_held: dict[str, int] = {}

    def narrow(self, packed: bytes, table: SlotTable, num_asked: int) -> bool:
        """The values of the next blocks, and the table of their moment; whether to ask for more.

        Nobody has the blocks behind the last one, if there are fewer than were asked for. Each value comes
        behind its length in two bytes: a byte that says nothing here, how many zero bytes the mask begins
        with, which are left out, then the rest of it; slot 0 is the lowest bit of the first byte.
        """
        if table is not self._table:
            self._change_table(table)
        holders, depth, at, end = self._holders, self._depth, 0, len(packed)
        num_wanted = depth + num_asked
        last = b""
        while at < end:
            start = at + 3
            at = start - 1 + (packed[at] << 8 | packed[at + 1])
            stored = packed[start:at]
            # The blocks of a chain mostly have the same holders.
            if stored != last:
                last = stored
                still = holders & int.from_bytes(stored[1:], "little") << 8 * stored[0]
                if still != holders:
                    self._settle(holders ^ still, depth)
                    holders = still
                    if not holders:
                        break
            depth += 1
        self._holders, self._depth = holders, depth
        return holders != 0 and depth == num_wanted

    def result(self) -> dict[str, int]:
        """Leading blocks of each worker; those without the first are absent."""
        self._settle(self._holders, self._depth)
        self._holders = 0
        return self._num_held

    def _change_table(self, table: SlotTable) -> None:
        """A slot that is no longer the same worker's, or is not yet, ends there."""
        before = self._table
        if before is None:
            self._holders = table.mask
        else:
            same = {s: w for s, w in before.workers.items() if table.workers.get(s) == w}
            still = self._holders & SlotTable(workers=same).mask
            self._settle(self._holders ^ still, self._depth)
            self._holders = still
        self._table = table

    def _settle(self, slots: int, depth: int) -> None:
        """These slots hold so many blocks and no more."""
        if depth and self._table is not None:
            for slot in slots_of(slots):
                self._num_held[self._table.workers[slot]] = depth


def slots_of(mask: int) -> Iterator[int]:
    """The slots whose bits are in a mask."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


_log = structlog.get_logger(__name__)

LEASE_MS = 60_000
"""How long the slots of a kvstore stay its own after its last housekeeping."""

SWEEPING_MS = 5_000
"""How long a kvstore that sweeps may be silent before another one goes on."""

DROPS_PER_CALL = 16
"""Slots that are given back late, one after the other, before somebody else has a turn."""

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
        self._num_tokens = 0
        self._slots: dict[str, Slot] = {}
        # Workers that may still have a slot, although they should not, by a token
        # with this number or a lower one. One entry for each, however long the server is away.
        self._dropped: dict[str, int] = {}

    async def add(self, worker_id: str, max_blocks: int, held: CacheDigest) -> bool:
        """Take the slot that a worker has, from whomever, if its blocks are those that are held, else a new one.

        Whether the worker's blocks are those that are held.
        """
        if self._slots.pop(worker_id, None) is not None:
            self._dropped[worker_id] = self._num_tokens
        # What was not even sent leaves nothing behind.
        self._scripts.require()
        token = self._new_token()
        try:
            number, is_kept = await self._scripts.run(
                "add",
                worker_id,
                token,
                self._replica,
                max_blocks,
                LEASE_MS,
                held.num_blocks,
                held.names_xor.to_bytes(BLOCK_HASH_SIZE),
            )
        except BaseException:
            self._dropped[worker_id] = self._num_tokens
            raise
        self._dropped.pop(worker_id, None)
        self._slots[worker_id] = Slot(_given(number), token)
        return bool(is_kept) or held == NOTHING_HELD

    async def drop(self, worker_id: str) -> None:
        """Give a worker's slot back, now or by `drop_late`. One that another kvstore took stays."""
        if self._slots.pop(worker_id, None) is None:
            return
        self._dropped[worker_id] = self._num_tokens
        try:
            await self._drop(worker_id)
        except UnavailableError:
            _log.info("worker_dropped_later", worker_id=worker_id)

    async def drop_late(self) -> bool:
        """Give back some of the slots that could not be given back before; whether there are more."""
        for worker_id in list(itertools.islice(self._dropped, DROPS_PER_CALL)):
            await self._drop(worker_id)
        return bool(self._dropped)

    async def renew(self, worker_id: str) -> None:
        """Take another slot for a worker in place of the one with its blocks.

        When that fails, the worker is no longer known.
        """
        self.own(worker_id)
        token = self._new_token()
        try:
            number = await self.write("clear", worker_id, token)
        except BaseException:
            self._slots.pop(worker_id, None)
            self._dropped[worker_id] = self._num_tokens
            raise
        self._slots[worker_id] = Slot(_given(number), token)

    async def write(self, script: str, worker_id: str, *arguments: bytes | str | int) -> int:
        """Run a script that proves itself by slot and token."""
        slot = self.own(worker_id)
        answer: int = await self._scripts.run_in_turn(script, *slot, *arguments)
        if answer == _NOT_MINE:
            if self._slots.get(worker_id) == slot:
                del self._slots[worker_id]
            raise not_indexed(worker_id)
        return answer

    async def sweep(self, budget: int, max_blocks: int) -> tuple[bool, int]:
        """Do a part of what is to be done about retired slots, and about blocks beyond `max_blocks`; renew the lease.

        Gives whether there is more to do, and how many blocks were given up.
        """
        has_more, num_evicted = await self._scripts.run(
            "sweep", self._replica, LEASE_MS, SWEEPING_MS, budget, self._new_token(), max_blocks
        )
        return bool(has_more), num_evicted

    async def facts(self, worker_id: str) -> SlotFacts:
        """Of a worker of this kvstore or of another."""
        answer = await self._scripts.run("facts", worker_id)
        own = self._slots.get(worker_id)
        if not answer or (own is not None and own.token != answer[1].decode()):
            raise not_indexed(worker_id)
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
            raise not_indexed(worker_id)
        return slot

    async def _drop(self, worker_id: str) -> None:
        number = self._dropped.get(worker_id)
        if number is None:
            return
        await self._scripts.run("drop", worker_id, self._replica, number, self._new_token())
        if self._dropped.get(worker_id) == number:
            del self._dropped[worker_id]

    def _new_token(self) -> str:
        self._num_tokens += 1
        return f"{self._replica}.{self._num_tokens}"


def _given(number: int) -> int:
    if number == _NO_SLOT:
        raise UnavailableError(
            "the index has no slot left: too many wait to be swept", reason="NO_SLOT"
        )
    return number
