"""What a worker's cache changed and the kvstore has not been told yet."""

from __future__ import annotations

from typing import NamedTuple

from pagemesh.cache.digest import CacheDigest
from pagemesh.engine.interface import StepOutput


class CacheChanges(NamedTuple):
    """Changes to report, in this order."""

    cleared: bool
    """Whether nothing that was reported before counts any more."""
    removed: list[bytes]
    """Blocks that left the cache."""
    stored: list[bytes]
    """Blocks that entered it."""
    digest: CacheDigest | None
    """Of all that the cache holds behind these changes, by the engine's own count; None while a snapshot is
    awaited."""


class Outbox:
    """Collects the net changes between two reports; bounded, because a full snapshot replaces them.

    While a snapshot is awaited, changes are worthless. At the start and after `discard` the cache counts as
    empty until then: to name too few blocks costs speed, to name blocks that are gone costs a wrong route.
    """

    def __init__(self, max_changes: int) -> None:
        self._max_changes = max_changes
        # Net changes: blocks that were not reported and are there, and the reverse; dicts, for their order.
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._digest: CacheDigest | None = None
        self._cleared = True
        self._awaits_snapshot = True

    @property
    def awaits_snapshot(self) -> bool:
        """Whether changes are worthless until a snapshot comes."""
        return self._awaits_snapshot

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self._stored or self._removed or self._cleared)

    def await_snapshot(self) -> None:
        """Forget what was not reported yet, and wait for a snapshot to make up for it."""
        self._stored, self._removed = {}, {}
        self._digest = None
        self._awaits_snapshot = True

    def discard(self) -> None:
        """Take back everything that was reported, too, and wait for a snapshot."""
        self.await_snapshot()
        self._cleared = True

    def add(self, step: StepOutput) -> None:
        """Take in one step. More than `max_changes` unreported changes are given up for a snapshot."""
        if step.cache_snapshot is not None:
            self._stored, self._removed = dict.fromkeys(step.cache_snapshot), {}
            self._digest = step.cache_digest
            self._cleared = True
            self._awaits_snapshot = False
            return
        if self._awaits_snapshot or step.cache_digest is None:
            return
        self._digest = step.cache_digest
        # A block can leave and enter again in one step, so removals come first.
        for block in step.removed_block_hashes:
            _move(block, self._stored, self._removed)
        for block in step.stored_block_hashes:
            _move(block, self._removed, self._stored)
        if len(self._stored) + len(self._removed) > self._max_changes:
            self.discard()

    def take(self) -> CacheChanges:
        """Everything to report, which counts as reported from now on."""
        changes = CacheChanges(self._cleared, list(self._removed), list(self._stored), self._digest)
        self._stored, self._removed = {}, {}
        self._cleared = False
        return changes


def _move(block: bytes, before: dict[bytes, None], behind: dict[bytes, None]) -> None:
    """Note a change of a block, or take the unreported change back that it undoes."""
    if block in before:
        del before[block]
    else:
        behind[block] = None
