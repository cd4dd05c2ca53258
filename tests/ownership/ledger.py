"""Who may touch which KV block, written down from what engines make known and what their callers ask.

Independent of the scheduler's own books: a lease begins here when the engine has made it known, and ends
when its holder says so. Every access is checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagemesh.scheduler.batch import Batch, BlockMoves
from pagemesh.scheduler.step_result import StepResult
from tests.fakes.engine import FakeKv, FakeRunner


class OwnershipError(AssertionError):
    """Somebody touched a block, or was given one, that somebody else relies on."""


class Ledger:
    """The open leases of one engine's blocks."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._writable: dict[str, frozenset[int]] = {}
        # By lease: of each block, how many leading slots hold KV that may be read.
        self._readable: dict[str, dict[int, int]] = {}

    def grant(self, lease: str, block_ids: Iterable[int]) -> None:
        """An importer alone may write these blocks, and nobody may read them."""
        blocks = frozenset(block_ids)
        for other, taken in (*self._writable.items(), *self._readable.items()):
            if other != lease and (both := blocks.intersection(taken)):
                raise OwnershipError(f"{lease} may write {sorted(both)}, which {other} has")
        self._writable[lease] = blocks

    def lend(self, lease: str, block_ids: Sequence[int], num_tokens: int) -> None:
        """The KV of so many tokens in these blocks may be read, and nobody may write it."""
        slots = {
            block_id: min(self._block_size, num_tokens - index * self._block_size)
            for index, block_id in enumerate(block_ids)
            if index * self._block_size < num_tokens
        }
        for other, blocks in self._writable.items():
            if both := blocks.intersection(slots):
                raise OwnershipError(f"{lease} may read {sorted(both)}, which {other} writes")
        self._readable[lease] = slots

    def end(self, lease: str) -> None:
        """The holder has given the lease up; idempotent."""
        self._writable.pop(lease, None)
        self._readable.pop(lease, None)

    def check_free(self, block_ids: Iterable[int]) -> None:
        """The engine holds everything that somebody outside relies on: none of it may be free."""
        free = set(block_ids)
        for lease, blocks in (*self._writable.items(), *self._readable.items()):
            if both := free.intersection(blocks):
                raise OwnershipError(f"blocks {sorted(both)} are free, but {lease} has them")

    def check_write(self, lease: str, block_ids: Iterable[int]) -> None:
        """From outside: only blocks that were granted to the writer."""
        if strange := set(block_ids) - self._writable.get(lease, frozenset()):
            raise OwnershipError(f"{lease} writes {sorted(strange)}, which it does not have")

    def check_read(self, lease: str, block_ids: Iterable[int]) -> None:
        """From outside: only blocks that were lent to the reader."""
        if strange := set(block_ids) - self._readable.get(lease, {}).keys():
            raise OwnershipError(f"{lease} reads {sorted(strange)}, which it does not have")

    def check_engine_write(self, block_id: int, slot: int, request_id: str) -> None:
        """The engine writes neither where an importer does nor over what is being read."""
        for lease, blocks in self._writable.items():
            if block_id in blocks:
                raise OwnershipError(f"{request_id} computes into block {block_id} of {lease}")
        for lease, slots in self._readable.items():
            if slot < slots.get(block_id, 0):
                raise OwnershipError(f"{request_id} overwrites block {block_id}, lent to {lease}")


class CheckedRunner(FakeRunner):
    """Computes only into blocks that nobody outside holds."""

    def __init__(self, kv: FakeKv, ledger: Ledger, num_swap_blocks: int = 0) -> None:
        super().__init__(kv, num_swap_blocks=num_swap_blocks)
        self._ledger = ledger

    def move(self, moves: BlockMoves) -> None:
        for _, target in (*moves.swap_ins, *moves.copies):
            self._ledger.check_engine_write(target, 0, "a move")
        super().move(moves)

    def execute(self, batch: Batch) -> StepResult:
        for sequence in batch.sequences:
            for position in range(sequence.start, sequence.start + len(sequence.token_ids)):
                index, slot = divmod(position, self._block_size)
                self._ledger.check_engine_write(
                    sequence.block_ids[index], slot, sequence.request_id
                )
        return super().execute(batch)
