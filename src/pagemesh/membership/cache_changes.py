"""What a worker's cache changed and the kvstore has not been told yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.core.engine import StepOutput


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
    resumed: CacheDigest | None = None
    """What the cache held before them, where the kvstore has that still, and lacks what was reported behind it."""


RECALLED_BLOCKS = 16_384
"""Changes that were reported last and are remembered: those of some seconds. A kvstore that is lost may have had so
many of them before it."""


class CacheEventBuffer:
    """Collects the net changes between two reports; bounded, because a full snapshot replaces them.

    While a snapshot is awaited, changes are worthless. At the start and after `discard` the cache counts as
    empty until then: to list too few blocks costs speed, to list blocks that are gone costs a wrong route.

    The last reports are remembered with what the cache held behind each: a kvstore that knows one of these
    moments need only be told what came behind it (`resume`).
    """

    def __init__(self, max_changes: int) -> None:
        self._max_changes = max_changes
        # Net changes: blocks that were not reported and are there, and the reverse; dicts, for their order.
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._digest: CacheDigest | None = None
        self._cleared = True
        self._awaits_snapshot = True
        # The latest reports, the first of which only counts for its digest; and how many changes the others have.
        self._reported: deque[CacheChanges] = deque()
        self._num_recalled = 0
        self._resumed: CacheDigest | None = None

    @property
    def awaits_snapshot(self) -> bool:
        """Whether changes are worthless until a snapshot comes."""
        return self._awaits_snapshot

    @property
    def digest(self) -> CacheDigest | None:
        """Of all that the cache holds, as far as it was added; None while a snapshot is awaited."""
        return self._digest

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self._stored or self._removed or self._cleared)

    def await_snapshot(self) -> None:
        """Forget what was not reported yet, and wait for a snapshot to make up for it."""
        self._stored, self._removed = {}, {}
        self._digest = self._resumed = None
        self._awaits_snapshot = True
        self._forget_reports()

    def resume(self, known: CacheDigest) -> bool:
        """Have the next report begin where a kvstore stands that may have missed the last ones.

        False, with nothing changed, if no report that is remembered led there.
        """
        later: list[CacheChanges] = []
        reports = list(self._reported)
        while reports and reports[-1].digest != known:
            later.append(reports.pop())
        if not reports:
            return False
        removed, stored = self._removed, self._stored
        self._removed, self._stored = {}, {}
        for report in (*reversed(later), CacheChanges(False, list(removed), list(stored), None)):
            self._move_all(report.removed, report.stored)
        self._forget_reports()
        self._resumed = known
        return True

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
            self._resumed = None
            self._forget_reports()
            return
        if self._awaits_snapshot or step.cache_digest is None:
            return
        self._digest = step.cache_digest
        # A block can leave and enter again in one step, so removals come first.
        self._move_all(step.removed_block_hashes, step.stored_block_hashes)
        if len(self._stored) + len(self._removed) > self._max_changes:
            self.discard()

    def take(self) -> CacheChanges:
        """Everything to report, which counts as reported from now on."""
        removed, stored = list(self._removed), list(self._stored)
        changes = CacheChanges(self._cleared, removed, stored, self._digest, self._resumed)
        self._remember(changes)
        self._stored, self._removed = {}, {}
        self._cleared, self._resumed = False, None
        return changes

    def _remember(self, changes: CacheChanges) -> None:
        if changes.digest is None:
            return
        if changes.resumed is not None:
            self._reported.append(CacheChanges(False, [], [], changes.resumed))
        if changes.cleared or not self._reported:
            # Nothing leads there but all that there is.
            self._reported.append(CacheChanges(False, [], [], changes.digest))
        elif changes.removed or changes.stored:
            self._reported.append(changes)
            self._num_recalled += _num_changes(changes)
        while self._num_recalled > RECALLED_BLOCKS:
            self._reported.popleft()
            self._num_recalled -= _num_changes(self._reported[0])

    def _forget_reports(self) -> None:
        self._reported.clear()
        self._num_recalled = 0

    def _move_all(self, removed: Sequence[bytes], stored: Sequence[bytes]) -> None:
        for block in removed:
            _move(block, self._stored, self._removed)
        for block in stored:
            _move(block, self._removed, self._stored)


def _num_changes(report: CacheChanges) -> int:
    return len(report.removed) + len(report.stored)


def _move(block: bytes, before: dict[bytes, None], behind: dict[bytes, None]) -> None:
    """Note a change of a block, or take the unreported change back that it undoes."""
    if block in before:
        del before[block]
    else:
        behind[block] = None
