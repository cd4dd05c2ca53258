"""Cores that the workers of a host lend each other, in memory that all of them map.

A worker computes on its share of the cores, and besides on those whose workers have nothing to compute. It asks
when a step begins, looks again at every layer of the model, and says when there is nothing more to do: so a lender
waits for its cores as long as the borrower takes for a layer, and at most for `PATIENCE`.

The memory is a table of `CoreClaim`s. Each worker writes its own alone. To hold more cores than before, it
locks the table, so that no two of them take the same core; to hold fewer, it does not. Locks belong to processes, and
the kernel frees those of one that ends, however it ends. Each worker locks its place in the table for as long as it
lives: if the lock of a place is free, so are the cores."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from pagemesh.core.load import CoreTotals


class CoreClaim(NamedTuple):
    """One worker's place among those that share cores."""

    share: int
    """Cores that are its own, whenever it wants them; at least one."""

    wanted: int
    """Threads that its present step can use; 0 while it computes nothing."""

    held: int
    """Cores that it computes on; those that it held before, until it has adapted."""


def entitlements(num_cores: int, claims: Sequence[CoreClaim]) -> list[int]:
    """Cores of each worker once all have adapted: what it wants of its share, and of the
    cores that are left an equal part.

    Everybody who sees the same claims comes to the same division. Its sum exceeds `num_cores` only where the
    shares alone do.
    """
    entitled = [min(claim.wanted, claim.share) for claim in claims]
    num_spare = num_cores - sum(entitled)
    while num_spare > 0:
        lacking = [i for i, claim in enumerate(claims) if entitled[i] < claim.wanted]
        if not lacking:
            break
        part = max(1, num_spare // len(lacking))
        for i in lacking[:num_spare]:
            more = min(part, claims[i].wanted - entitled[i])
            entitled[i] += more
            num_spare -= more
    return entitled


def grantable(num_cores: int, claims: Sequence[CoreClaim], index: int) -> int:
    """Cores that one worker may hold from now on: of those that it is entitled to, what no other one holds.

    If each worker in turn holds no more than that, all together never hold more than `num_cores`, or than the
    sum of the shares where there are more workers than cores.
    """
    claim = claims[index]
    entitled = entitlements(num_cores, claims)[index]
    num_held = sum(other.held for other in claims) - claim.held
    free = max(0, num_cores - num_held)
    own = max(0, max(num_cores, sum(each.share for each in claims)) - num_held)
    return max(min(entitled, free), min(claim.wanted, claim.share, own))


PATIENCE: Final = 0.02
"""Seconds that a worker without a single core waits for its share. Then it computes all the same, and shares them
with a borrower that was stopped, or whose layer takes longer."""

JOIN_TIMEOUT: Final = 5.0
"""Seconds that a worker waits for the end of the one whose place it takes."""

_POLL_INTERVAL: Final = 0.0001

_SEARCH_INTERVAL: Final = 0.25
"""Seconds between two searches for ended workers by one that wants more cores than it has."""

_TABLE_LOCK: Final = 0
"""Byte whose lock is the table's; behind it are those of the places."""

_NUM_FIELDS: Final = len(CoreClaim._fields)
_WANTED: Final = CoreClaim._fields.index("wanted")
_HELD: Final = CoreClaim._fields.index("held")


class CorePlace(NamedTuple):
    """Where a worker finds its claim."""

    descriptor: int
    """Of the table's memory."""

    number: int
    """Of its claim in the table."""


@contextmanager
def core_table(num_cores: int, shares: Sequence[int]) -> Iterator[int]:
    """The descriptor of a table for workers with these shares, for their processes to inherit. Linux alone."""
    numbers = array("I", [num_cores])
    for share in shares:
        numbers.extend(CoreClaim(share, wanted=0, held=0))
    descriptor = os.memfd_create("pagemesh-cores", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, numbers.tobytes())
        # Nobody who maps it can be hurt.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield descriptor
    finally:
        os.close(descriptor)


class SharedCores:
    """The cores of one worker; for one thread at a time.

    Locks are a process's: there is one of these in each, and it stays open until the process ends.
    """

    def __init__(self, place: CorePlace, patience: float = PATIENCE) -> None:
        """Take a place; TimeoutError when the worker that had it does not end."""
        self._descriptor, self._index = place
        self._patience = patience
        # The mapping has a descriptor of its own. Whoever closes it gives up all locks.
        self._mapping = mmap.mmap(self._descriptor, 0)
        self._bytes = memoryview(self._mapping)
        self._numbers = self._bytes.cast("I")
        self.num_cores = self._numbers[0]
        """Of the host, or as many of them as its workers may use."""
        self._first = 1 + place.number * _NUM_FIELDS
        self._wanted = self._held = 0
        self._seen = b""
        self._searched_at = self._counted_at = time.monotonic()
        self._totals = CoreTotals()
        self._await_place()
        self.share = self._claims()[place.number].share
        """Cores that are its own."""
        self._write(wanted=0, held=0)

    def take(self, num_threads: int) -> int:
        """Ask for cores for a step that can use so many threads; gives how many it may use, at least one.

        What is missing may come later, see `adjust`.
        """
        self.count()
        wanted = min(num_threads, self.num_cores)
        if wanted != self._wanted:
            self._write(wanted=wanted)
        if not self.adjust():
            self._wait()
        elif self._held < wanted and self._counted_at - self._searched_at > _SEARCH_INTERVAL:
            self._free_ended()
        return self._held

    def adjust(self) -> int:
        """Give back what others want and take what became free; gives how many threads may be used now.

        Waits for nothing, and costs next to nothing as long as no claim has changed. For steps between two layers.
        """
        table = bytes(self._bytes)
        if table == self._seen or not self._wanted:
            return self._held
        granted = grantable(self.num_cores, self._claims(), self._index)
        if granted > self._held:
            self._grow()
        elif granted < self._held > 1:
            self._write(held=max(1, granted))
        else:
            self._seen = table
        return self._held

    def rest(self) -> None:
        """There is nothing to compute: all cores may be lent."""
        if self._wanted or self._held:
            self._write(wanted=0, held=0)

    def count(self) -> CoreTotals:
        """What was borrowed and waited for until now."""
        now = time.monotonic()
        if (num_borrowed := self._held - self.share) > 0:
            borrowed, waited = self._totals
            borrowed += num_borrowed * (now - self._counted_at)
            self._totals = CoreTotals(borrowed, waited)
        self._counted_at = now
        return self._totals

    def _wait(self) -> None:
        """Until the first core is free, or for the patience."""
        started = time.monotonic()
        while not self.adjust():
            if time.monotonic() - started > self._patience:
                self._write(held=min(self._wanted, self.share))
                break
            self._free_ended()
            time.sleep(_POLL_INTERVAL)
        borrowed, waited = self._totals
        self._totals = CoreTotals(borrowed, waited + time.monotonic() - started)

    def _grow(self) -> None:
        """Look again while nobody else can grow; not at all when somebody else just does."""
        with self._locked(_TABLE_LOCK) as locked:
            if locked:
                granted = grantable(self.num_cores, self._claims(), self._index)
                if granted > self._held:
                    self._write(held=granted)

    def _free_ended(self) -> None:
        """Cancel the claims of workers whose processes have ended."""
        self._searched_at = time.monotonic()
        with self._locked(_TABLE_LOCK) as locked:
            if not locked:
                return
            for index, claim in enumerate(self._claims()):
                if index == self._index or not (claim.wanted or claim.held):
                    continue
                with self._locked(1 + index) as has_ended:
                    if has_ended:
                        first = 1 + index * _NUM_FIELDS
                        self._numbers[first + _WANTED] = self._numbers[first + _HELD] = 0

    def _await_place(self) -> None:
        deadline = time.monotonic() + JOIN_TIMEOUT
        while not self._try_lock(1 + self._index):
            if time.monotonic() > deadline:
                raise TimeoutError("the process that had its cores before has not ended")
            time.sleep(_POLL_INTERVAL)

    def _claims(self) -> list[CoreClaim]:
        numbers = self._numbers[1:].tolist()
        return [
            CoreClaim(*numbers[i : i + _NUM_FIELDS]) for i in range(0, len(numbers), _NUM_FIELDS)
        ]

    def _write(self, *, wanted: int | None = None, held: int | None = None) -> None:
        self.count()
        if wanted is not None:
            self._wanted = self._numbers[self._first + _WANTED] = wanted
        if held is not None:
            self._held = self._numbers[self._first + _HELD] = held

    @contextmanager
    def _locked(self, byte: int) -> Iterator[bool]:
        """Lock a byte, unless another process has locked it; gives whether it is locked."""
        locked = self._try_lock(byte)
        try:
            yield locked
        finally:
            if locked:
                self._set_lock(byte, fcntl.F_UNLCK)

    def _try_lock(self, byte: int) -> bool:
        try:
            self._set_lock(byte, fcntl.F_WRLCK)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _set_lock(self, byte: int, kind: int) -> None:
        # Linux's struct flock; F_SETLK does not wait.
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
        fcntl.fcntl(self._descriptor, fcntl.F_SETLK, lock)
