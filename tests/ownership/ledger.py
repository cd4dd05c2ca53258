"""Who may touch which KV block, written down from what engines make known and what their callers ask.

Independent of the scheduler's own books: a lease begins here when the engine has made it known, and ends
when its holder says so. Every access is checked against it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from pagemesh.engine.runner import LayerProgress
from pagemesh.scheduler.batch import Batch, BlockMoves, StepResult
from tests.fakes.engine import FakeKv, FakeRunner


class OwnershipError(AssertionError):
    """Somebody touched a block, or was given one, that somebody else relies on."""


def _fail(what: str) -> None:
    raise OwnershipError(what)


class Ledger:
    """The open leases of one engine's blocks; any thread."""

    def __init__(self, block_size: int, tell: Callable[[str], None] = _fail) -> None:
        """`tell` is called with everything that is wrong."""
        self._block_size = block_size
        self._tell = tell
        self._lock = threading.Lock()
        self._writable: dict[str, frozenset[int]] = {}
        # By lease: of each block, how many leading slots hold KV that may be read.
        self._readable: dict[str, dict[int, int]] = {}

    @property
    def open_leases(self) -> set[str]:
        """Names of those that have not ended."""
        with self._lock:
            return {*self._writable, *self._readable}

    def grant(self, lease: str, block_ids: Iterable[int]) -> None:
        """An importer alone may write these blocks, and nobody may read them."""
        blocks = frozenset(block_ids)
        with self._lock:
            for other, taken in (*self._writable.items(), *self._readable.items()):
                if both := blocks.intersection(taken):
                    self._tell(f"{lease} may write {sorted(both)}, which {other} has")
            self._writable[lease] = blocks

    def lend(self, lease: str, block_ids: Sequence[int], num_tokens: int) -> None:
        """The KV of so many tokens in these blocks may be read, and nobody may write it."""
        slots = {
            block_id: min(self._block_size, num_tokens - index * self._block_size)
            for index, block_id in enumerate(block_ids)
            if index * self._block_size < num_tokens
        }
        with self._lock:
            for other, blocks in self._writable.items():
                if both := blocks.intersection(slots):
                    self._tell(f"{lease} may read {sorted(both)}, which {other} writes")
            self._readable[lease] = slots

    def end(self, lease: str) -> None:
        """The holder has given the lease up; idempotent."""
        with self._lock:
            self._writable.pop(lease, None)
            self._readable.pop(lease, None)

    def check_free(self, block_ids: Iterable[int]) -> None:
        """The engine holds everything that somebody outside relies on: none of it may be free."""
        free = set(block_ids)
        with self._lock:
            for lease, blocks in (*self._writable.items(), *self._readable.items()):
                if both := free.intersection(blocks):
                    self._tell(f"blocks {sorted(both)} are free, but {lease} has them")

    def check_write(self, block_ids: Iterable[int], lease: str | None = None) -> None:
        """From outside: only blocks that were granted to the writer, or to somebody."""
        with self._lock:
            owned = (b for name, b in self._writable.items() if lease in (None, name))
            if strange := set(block_ids).difference(*owned):
                self._tell(f"{lease or 'somebody'} writes {sorted(strange)} without a grant")

    def check_read(self, block_ids: Iterable[int], lease: str | None = None) -> None:
        """From outside: only blocks that were lent to the reader, or to somebody."""
        with self._lock:
            lent = (b for name, b in self._readable.items() if lease in (None, name))
            if strange := set(block_ids).difference(*lent):
                self._tell(f"{lease or 'somebody'} reads {sorted(strange)}, which it was not lent")

    def check_engine_write(self, block_id: int, slot: int, request_id: str) -> None:
        """The engine writes neither where an importer does nor over what is being read."""
        with self._lock:
            for lease, blocks in self._writable.items():
                if block_id in blocks:
                    self._tell(f"{request_id} computes into block {block_id} of {lease}")
            for lease, slots in self._readable.items():
                if slot < slots.get(block_id, 0):
                    self._tell(f"{request_id} overwrites block {block_id}, lent to {lease}")


class CheckedRunner(FakeRunner):
    """Computes only into blocks that nobody outside holds."""

    def __init__(self, kv: FakeKv, ledger: Ledger, num_swap_blocks: int = 0) -> None:
        super().__init__(kv, num_swap_blocks=num_swap_blocks)
        self._ledger = ledger

    def move(self, moves: BlockMoves) -> None:
        for _, target in (*moves.swap_ins, *moves.copies):
            self._ledger.check_engine_write(target, 0, "a move")
        super().move(moves)

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        for sequence in batch.sequences:
            for position in range(sequence.start, sequence.start + len(sequence.token_ids)):
                index, slot = divmod(position, self._block_size)
                self._ledger.check_engine_write(
                    sequence.block_ids[index], slot, sequence.request_id
                )
        return super().execute(batch, watch)
