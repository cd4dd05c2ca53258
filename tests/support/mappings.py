"""What a process has mapped of KV memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal


def num_read_only_mappings(process_id: int | None = None) -> int:
    """Mappings of other workers' KV: a worker maps its own to write it as well. Of this process by default."""
    _collect()
    maps = Path(f"/proc/{process_id or 'self'}/maps").read_text("ascii")
    lines = [line.split() for line in maps.splitlines() if "memfd:pagemesh-kv" in line]
    return sum("w" not in access for _, access, *_ in lines)


def num_descriptors(*others: str) -> int:
    """Descriptors of this process that are KV memory, or processes, or have one of these other targets.

    Not of everything: gRPC closes connections of earlier tests whenever it likes.
    """
    _collect()
    kinds = ("pagemesh-kv", "[pidfd]", *others)
    return sum(any(kind in target for kind in kinds) for target, _ in _descriptors("self"))


def _collect() -> None:
    """What earlier tests left in cycles must not go between two counts."""
    gc.collect()


def num_memories_held(process_id: int) -> int:
    """KV memories that a process has descriptors of, its own with them."""
    return len({inode for target, inode in _descriptors(process_id) if "pagemesh-kv" in target})


def _descriptors(process_id: int | Literal["self"]) -> Iterator[tuple[str, int]]:
    """Target and inode of each that a process has open, and does not close meanwhile."""
    for each in Path(f"/proc/{process_id}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(each.readlink()), each.stat().st_ino
