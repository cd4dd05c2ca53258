"""KV memory of another process on this host, mapped to be read. No torch.

Nothing that it holds can be trusted before a checksum said so: its owner may write, or give blocks to
somebody else, at any time. That it cannot become smaller is checked, for then reading it would be fatal.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt

from pagemesh.core.kv import KvLayout
from pagemesh.errors import UnavailableError
from pagemesh.kv_memory.memory import NONCE_BYTES, MemoryName, as_blocks, memory_size

UNREACHABLE: Final = "KV_MEMORY_UNREACHABLE"
"""Reason of the error for memory that cannot be read here; KV can come another way."""


class PeerMemory:
    """Mapped by the constructor, until `close`. Any thread may read."""

    def __init__(self, name: MemoryName, layout: KvLayout) -> None:
        """Raises UnavailableError when there is no such memory, or it is not as it was named."""
        self.name = name
        path = f"/proc/{name.process_id}/fd/{name.descriptor}"
        size = memory_size(layout, name.num_blocks)
        try:
            with _opened(path, os.O_PATH) as found:
                # Looked at before it is opened: that a device is opened may already do something.
                _check_file(found, size)
                # Not blocking: whatever else it may be, it must not keep us waiting.
                with _opened(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK) as descriptor:
                    _check_seals(descriptor)
                    mapping = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except (OSError, OverflowError, ValueError) as error:
            raise unreachable(f"{path} cannot be read: {error}") from error
        if mapping[-NONCE_BYTES:] != name.nonce:
            mapping.close()
            raise unreachable(f"{path} is other memory than was named")
        self._blocks: npt.NDArray[np.uint8] | None = as_blocks(mapping, layout, name.num_blocks)

    @property
    def blocks(self) -> npt.NDArray[np.uint8]:
        """[layer, 2 (keys, values), block, bytes], read-only."""
        assert self._blocks is not None, "the memory is closed"
        return self._blocks

    def close(self) -> None:
        """Let go of the memory, which is unmapped when nobody reads it any more. Idempotent."""
        self._blocks = None


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_file(descriptor: int, size: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise ValueError(f"it is no file of {size} bytes")


def _check_seals(descriptor: int) -> None:
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("it may shrink")


def unreachable(why: str) -> UnavailableError:
    """The error for a sender's memory that cannot be read here."""
    return UnavailableError(f"a sender's memory is out of reach: {why}", reason=UNREACHABLE)
