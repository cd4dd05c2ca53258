"""Weights that the workers of a host hold once, in memory that all of them map. No torch.

Every worker reads and packs the model itself. Whatever it has packed it looks for in this memory by its contents, and
drops its own copy for the one that is there, or puts it there for the others. So nobody waits for anybody to load,
workers of different models may use the same memory, and what a worker computes with are the bytes that it would have
had alone: a model whose files were replaced, or another class of kernels, just shares less.

The memory is a log. Each entry begins with a header, on a page of its own, and no entry moves or changes once the
log's end lies behind it; a process that ends in the middle of adding one leaves nothing. Entries are held by locks
that the kernel frees with the process, however it ends, and whoever joins gives back the pages of those that nobody
holds.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import xxhash

MIN_BYTES: Final = 1 << 16
"""Of what is worth an entry of its own: norms and biases are not."""

LOCK_TIMEOUT: Final = 10.0
"""Seconds that a worker waits for another one, which copies one weight at most, before it keeps its own copy."""

_POLL_INTERVAL: Final = 0.0005

_NUM_BYTES: Final = 1 << 42
"""Of addresses. Pages are taken as they are written."""

_END: Final = struct.Struct("=Q")
_HEADER: Final = struct.Struct("=16sQ")
_FREED: Final = bytes(16)
_HEADER_BYTES: Final = 64
_PAGE: Final = mmap.PAGESIZE
_LOCK: Final = "hhqqi4x"
"""struct flock: type, whence, start, length, process."""


class _Entry(NamedTuple):
    begin: int
    num_bytes: int

    @property
    def end(self) -> int:
        return -(-(self.begin + _HEADER_BYTES + self.num_bytes) // _PAGE) * _PAGE


_LOG: Final = _Entry(0, 0)
"""What is locked to read or extend the log."""


@contextmanager
def weight_memory() -> Iterator[int]:
    """The descriptor of empty memory for weights, for the workers of a host to inherit. Linux alone."""
    descriptor = os.memfd_create("pagemesh-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _NUM_BYTES)
        # Nobody who maps it can be hurt.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield descriptor
    finally:
        os.close(descriptor)


class SharedWeights:
    """The weights of one worker among those of its host; for one thread, while it loads."""

    def __init__(self, descriptor: int, timeout: float = LOCK_TIMEOUT) -> None:
        """Join; OSError where the memory cannot be mapped, TimeoutError when another worker does not move on."""
        # An open file of its own: with one that others have inherited, locks would be theirs as well. As long as
        # there is a view of the mapped weights, it is open there, and the locks on them stay.
        self._file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self._log = mmap.mmap(self._file, _NUM_BYTES)
        self._weights = memoryview(mmap.mmap(self._file, _NUM_BYTES, prot=mmap.PROT_READ))
        self._timeout = timeout
        self._known: dict[bytes, _Entry] = {}
        self._seen = _PAGE
        self.found_bytes = 0
        """Of weights that were there already."""
        self.added_bytes = 0
        """Of those that were not."""
        self.is_stuck = False
        """Whether another worker did not move on in time."""
        with self._locked():
            self._free_unused()

    def share(self, weight: memoryview) -> memoryview | None:
        """The same bytes in the memory of all, to be read only; None when they stay the caller's own.

        That is so for few bytes, when the memory is full, and once another worker did not move on in time.
        """
        num_bytes = weight.nbytes
        if num_bytes < MIN_BYTES or self.is_stuck:
            return None
        digest = xxhash.xxh3_128_digest(weight)
        try:
            with self._locked():
                found = self._find(digest, num_bytes)
                entry = found or self._add(digest, weight)
                if entry is None:
                    return None
                if found:
                    self.found_bytes += num_bytes
                else:
                    self.added_bytes += num_bytes
                # Neighbours become one lock.
                self._lock(entry, fcntl.F_RDLCK)
        except TimeoutError:
            self.is_stuck = True
            return None
        begin = entry.begin + _HEADER_BYTES
        return self._weights[begin : begin + num_bytes]

    def close(self) -> None:
        """There is nothing more to share; what is in use stays until its last view goes."""
        self._log.close()
        os.close(self._file)

    def _find(self, digest: bytes, num_bytes: int) -> _Entry | None:
        for entry, known in self._entries(self._seen):
            self._known[known] = entry
            self._seen = entry.end
        found = self._known.get(digest)
        # Whoever joined meanwhile may have given it back.
        if found is None or _HEADER.unpack_from(self._log, found.begin) != (digest, num_bytes):
            return None
        return found

    def _entries(self, begin: int = _PAGE) -> Iterator[tuple[_Entry, bytes]]:
        """Those from `begin` to the log's end, with their digests."""
        end = self._end()
        while begin < end:
            digest, num_bytes = _HEADER.unpack_from(self._log, begin)
            entry = _Entry(begin, num_bytes)
            yield entry, digest
            begin = entry.end

    def _add(self, digest: bytes, weight: memoryview) -> _Entry | None:
        entry = _Entry(self._end(), weight.nbytes)
        if entry.end > _NUM_BYTES:
            return None
        begin = entry.begin + _HEADER_BYTES
        self._log[begin : begin + weight.nbytes] = weight
        _HEADER.pack_into(self._log, entry.begin, digest, weight.nbytes)
        # Last: up to here it has not happened.
        _END.pack_into(self._log, 0, entry.end)
        return entry

    def _end(self) -> int:
        (end,) = _END.unpack_from(self._log, 0)
        return max(int(end), _PAGE)

    def _free_unused(self) -> None:
        """Give back the pages of what nobody holds: the weights of a worker that has ended, or of an older model."""
        for entry, _ in self._entries():
            if not self._is_held(entry):
                # Whoever knows it must not find it without its bytes.
                _HEADER.pack_into(self._log, entry.begin, _FREED, entry.num_bytes)
                first = entry.begin + _PAGE
                if first < entry.end:
                    self._log.madvise(mmap.MADV_REMOVE, first, entry.end - first)

    def _is_held(self, entry: _Entry) -> bool:
        found = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, _lock_of(entry, fcntl.F_WRLCK))
        return bool(struct.unpack(_LOCK, found)[0] != fcntl.F_UNLCK)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else reads or extends the log meanwhile; TimeoutError when it is not free in time."""
        ends_at = time.monotonic() + self._timeout
        while not self._lock(_LOG, fcntl.F_WRLCK):
            if time.monotonic() > ends_at:
                raise TimeoutError("another worker has locked them for too long")
            time.sleep(_POLL_INTERVAL)
        try:
            yield
        finally:
            self._lock(_LOG, fcntl.F_UNLCK)

    def _lock(self, entry: _Entry, kind: int) -> bool:
        """Lock an entry, or unlock it; False when another one has it."""
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _lock_of(entry, kind))
        except BlockingIOError:
            return False
        return True


def _lock_of(entry: _Entry, kind: int) -> bytes:
    return struct.pack(_LOCK, kind, os.SEEK_SET, entry.begin, entry.end - entry.begin, 0)
