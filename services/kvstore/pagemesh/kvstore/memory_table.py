"""The blocks of the index in memory: hashes, holders and when they were last of use.

A block's value is one int: the bits of its holders, and in the lowest eight bits the tick of its last use.
Ints are shared where they are equal, so that a block that one worker holds takes no more than its hash and
its place in a dict. Several dicts rather than one, by the last byte of the hash: none of them ever takes long
to grow, to be searched for the bits of a worker that left, or to be looked through for blocks of no use.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

STAMP_BITS = 8
STAMPS = 2**STAMP_BITS

TICKS_PER_TURN = 16
"""Ticks while as many blocks as the index may hold are stored or looked up."""

LEAST_SHARD = 64
"""Blocks in a dict of a full index at least: as few as are compared when one has to go."""

EVICTED_SHARE = 16
"""Of the blocks that are looked through, one in so many goes."""

_MAX_SHARED = 4096
_SAMPLE = 512
_NAME_BYTES = 64
"""What an object of 16 bytes takes of Python's allocator."""


class BlockTable:
    """All blocks that somebody holds. A bit is an int with one bit, above the stamp."""

    def __init__(self, max_blocks: int) -> None:
        """At most `max_blocks` are wanted (see `evict`), 0 for any number."""
        self._max_blocks = max_blocks
        num_shards = 256
        while max_blocks and num_shards > 1 and max_blocks < num_shards * LEAST_SHARD:
            num_shards //= 2
        self.shards: list[dict[bytes, int]] = [{} for _ in range(num_shards)]
        self.by_last_byte = [self.shards[byte % num_shards] for byte in range(256)]
        """The dict of a block, by the last byte of its hash."""
        self._shared: dict[int, int] = {}
        self.num_blocks = 0
        self._num_used = 0
        self._stamp = 0
        self._hand = 0

    def without(self, bit: int, blocks: Iterable[bytes]) -> dict[bytes, int]:
        """Of these blocks those that do not have the bit, with their values; 0 for those that are new."""
        shards = self.by_last_byte
        found = {block: shards[block[-1]].get(block, 0) for block in blocks}
        return {block: value for block, value in found.items() if not value & bit}

    def add(self, bit: int, values: Mapping[bytes, int]) -> None:
        """Give the bit to blocks that `without` gave just now."""
        self._use(len(values))
        self.num_blocks += list(values.values()).count(0)
        shards, stamp = self.by_last_byte, self._stamp
        last, shared = -1, 0
        for block, value in values.items():
            if value != last:
                last = value
                shared = self._share(value >> STAMP_BITS << STAMP_BITS | bit | stamp)
            shards[block[-1]][block] = shared

    def discard(self, bits: int, blocks: Iterable[bytes]) -> list[bytes]:
        """Take bits from blocks; those that had any of them."""
        changed = []
        shards = self.by_last_byte
        for block in blocks:
            shard = shards[block[-1]]
            value = shard.get(block, 0)
            if value & bits:
                changed.append(block)
                rest = value & ~bits
                if rest >= STAMPS:
                    shard[block] = self._share(rest)
                else:
                    del shard[block]
                    self.num_blocks -= 1
        return changed

    def use(self, blocks: Sequence[bytes]) -> None:
        """A lookup found these blocks, one behind the other in a chain."""
        if not self._max_blocks:
            return
        shards, stamp = self.by_last_byte, self._stamp
        deepest = blocks[-1]
        # Whoever was of use at this depth was of use at every lesser one.
        if shards[deepest[-1]][deepest] % STAMPS == stamp:
            return
        last, shared = -1, 0
        for block in blocks:
            shard = shards[block[-1]]
            value = shard[block]
            if value != last:
                last = value
                shared = self._share(value >> STAMP_BITS << STAMP_BITS | stamp)
            shard[block] = shared
        self._use(len(blocks))

    def evict(self) -> Counter[int]:
        """Give up blocks until there are no more than wanted; the holders' bits of those that went.

        A hand goes round the dicts; of each it takes the blocks that were of no use for longest.
        """
        lost: Counter[int] = Counter()
        while self._max_blocks and self.num_blocks > self._max_blocks:
            shard = self.shards[self._hand]
            self._hand = (self._hand + 1) % len(self.shards)
            surplus = self.num_blocks - self._max_blocks
            for block in self._least_used(shard, min(surplus, -(-len(shard) // EVICTED_SHARE))):
                lost[shard.pop(block) >> STAMP_BITS << STAMP_BITS] += 1
                self.num_blocks -= 1
        return lost

    def num_bytes(self) -> int:
        """Memory of all blocks; that of their values by a sample."""
        dicts = sum(map(sys.getsizeof, self.shards))
        sample = list(islice(self.shards[self._hand].values(), _SAMPLE))
        # Two of the references are the sample's and the call's own.
        shares = [_allocated(value) / max(1, sys.getrefcount(value) - 3) for value in sample]
        per_value = sum(shares) / len(shares) if shares else 0.0
        return dicts + round(self.num_blocks * (_NAME_BYTES + per_value))

    def _use(self, num_blocks: int) -> None:
        if self._max_blocks:
            self._num_used += num_blocks
            self._stamp = self._num_used * TICKS_PER_TURN // self._max_blocks % STAMPS

    def _least_used(self, shard: Mapping[bytes, int], num_wanted: int) -> list[bytes]:
        """So many blocks of a dict, those of the oldest ticks first."""
        present = self._stamp
        ages = Counter([(present - value) % STAMPS for value in shard.values()])
        num_left, oldest = num_wanted, -1
        for age in sorted(ages, reverse=True):
            oldest = age
            if ages[age] >= num_left:
                break
            num_left -= ages[age]
        found = [b for b, value in shard.items() if (present - value) % STAMPS > oldest]
        rest = (b for b, value in shard.items() if (present - value) % STAMPS == oldest)
        return found + list(islice(rest, num_wanted - len(found)))

    def _share(self, value: int) -> int:
        """One object for equal values, as long as there are not too many different ones."""
        if len(self._shared) > _MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(value, value)


def _allocated(value: int) -> int:
    """What an int takes of Python's allocator."""
    return (sys.getsizeof(value) + 15) // 16 * 16
