"""Blocks of prompts that are computed somewhere and in nobody's index yet.

Without them a burst of equal prompts would miss on as many workers as it has requests: the index learns of a
block only when it was computed and published.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

LINGER: Final = 1.0
"""Seconds from a prompt's end on the worker until its blocks are surely in the index, or never will be."""

MAX_BLOCKS: Final = 1 << 18
"""Blocks of all prompts together; of prompts beyond that nothing is noted. About 40 MB."""


class Note(NamedTuple):
    """What was noted for one prompt."""

    slot: int
    names: Sequence[bytes]


class ComingBlocks:
    """By name, which workers are about to hold a block. `clock` gives seconds.

    Workers are slots in bit masks, as in the index. What is noted is never wrong for long: at most a worker is
    believed to hold what it lost with a request that failed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._masks: dict[bytes, int] = {}
        self._slots: dict[str, int] = {}
        self._worker_ids: dict[int, str] = {}
        self._num_by_slot: Counter[int] = Counter()
        self._num_noted = 0
        self._lingering: deque[tuple[float, Note]] = deque()

    def __len__(self) -> int:
        """Blocks that are noted, once for each worker."""
        return self._num_noted

    def add(self, worker_id: str, names: Sequence[bytes]) -> Note | None:
        """The worker computes these; None when there is nothing to note. `settle` it in the end."""
        self._forget_old()
        slot = self._slot(worker_id)
        bit, masks = 1 << slot, self._masks
        # Blocks that are noted for an earlier prompt are that one's to forget.
        new = [name for name in names if not masks.get(name, 0) & bit]
        if not new or self._num_noted + len(new) > MAX_BLOCKS:
            return None
        for name in new:
            masks[name] = masks.get(name, 0) | bit
        self._slots[worker_id], self._worker_ids[slot] = slot, worker_id
        self._num_by_slot[slot] += len(new)
        self._num_noted += len(new)
        return Note(slot, new)

    def settle(self, note: Note) -> None:
        """The worker is done with the prompt: forget it when the index knows."""
        self._lingering.append((self._clock() + LINGER, note))

    def extend(
        self, chains: Iterable[Sequence[bytes]], held: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Leading blocks on each worker, by its id, with those that are coming; given those held.

        `chains` are the names of a prompt's blocks, in each way in which workers name them.
        """
        self._forget_old()
        if not self._num_noted:
            return held
        found = dict(held)
        holders = {slot: w for w in held if (slot := self._slots.get(w)) is not None}
        others = ~sum(1 << slot for slot in holders)
        for names in filter(None, chains):
            for slot, worker_id in holders.items():
                end = self._run(names, held[worker_id], 1 << slot)
                found[worker_id] = max(found[worker_id], end)
            for slot, length in self._runs(names, others):
                found[self._worker_ids[slot]] = length
        return found

    def _slot(self, worker_id: str) -> int:
        """The worker's slot, or the first free one."""
        slot = self._slots.get(worker_id)
        if slot is None:
            slot = next(n for n in range(len(self._slots) + 1) if n not in self._worker_ids)
        return slot

    def _run(self, names: Sequence[bytes], start: int, bit: int) -> int:
        """Where a run of blocks on one worker ends, that goes on at `start`."""
        masks = self._masks
        for index in range(start, len(names)):
            if not masks.get(names[index], 0) & bit:
                return index
        return len(names)

    def _runs(self, names: Sequence[bytes], slots: int) -> list[tuple[int, int]]:
        """Slot and length of all runs from the first block on; an AND down the chain."""
        runs: list[tuple[int, int]] = []
        alive, masks = slots, self._masks
        for index, name in enumerate(names):
            left = alive & masks.get(name, 0)
            if left != alive:
                if index:
                    runs += ((slot, index) for slot in _bits(alive & ~left))
                if not left:
                    return runs
                alive = left
        return runs + [(slot, len(names)) for slot in _bits(alive)]

    def _forget_old(self) -> None:
        now = self._clock()
        while self._lingering and self._lingering[0][0] <= now:
            note = self._lingering.popleft()[1]
            bit = 1 << note.slot
            for name in note.names:
                left = self._masks[name] & ~bit
                if left:
                    self._masks[name] = left
                else:
                    del self._masks[name]
            self._num_noted -= len(note.names)
            self._num_by_slot[note.slot] -= len(note.names)
            if not self._num_by_slot[note.slot]:
                # Workers come and go, and masks must not grow with all that ever were.
                del self._num_by_slot[note.slot]
                del self._slots[self._worker_ids.pop(note.slot)]


def _bits(mask: int) -> list[int]:
    """Places of the ones."""
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return places
