"""KV memory of another process on this host, mapped to be read. No torch.

Nothing that it holds can be trusted before a checksum said so: its owner may write, or give blocks to
somebody else, at any time. That it cannot become smaller is checked, for then reading it would be fatal.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from typing import Final

import numpy as np
import numpy.typing as npt

from pagemesh.engine.interface import BlockLayout
from pagemesh.engine.kv_memory import NONCE_BYTES, MemoryName, as_blocks, memory_size
from pagemesh.errors import UnavailableError

UNREACHABLE: Final = "KV_MEMORY_UNREACHABLE"
"""Reason of the error for memory that cannot be read here; KV can come another way."""


class PeerMemory:
    """Mapped by the constructor, until `close`. Any thread may read."""

    def __init__(self, name: MemoryName, layout: BlockLayout) -> None:
        """Raises UnavailableError when there is no such memory, or it is not as it was named."""
        self.name = name
        path = f"/proc/{name.process_id}/fd/{name.descriptor}"
        size = memory_size(layout, name.num_blocks)
        try:
            # Not blocking: whatever else may lie there, a pipe for example, must not keep us waiting.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                _check(descriptor, size)
                mapping = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
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


def _check(descriptor: int, size: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise ValueError(f"it is no file of {size} bytes")
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("it may shrink")


def unreachable(why: str) -> UnavailableError:
    """The error for a sender's memory that cannot be read here."""
    return UnavailableError(f"a sender's memory is out of reach: {why}", reason=UNREACHABLE)
