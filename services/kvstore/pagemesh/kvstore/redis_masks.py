"""Who holds how many leading blocks, from the masks that the index on Redis answers a lookup with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property


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
