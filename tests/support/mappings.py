"""What a process has mapped of KV memory."""

from __future__ import annotations

import gc
from pathlib import Path


def num_read_only_mappings(process_id: int | None = None) -> int:
    """Mappings of other workers' KV: a worker maps its own to write it as well. Of this process by default."""
    _collect()
    maps = Path(f"/proc/{process_id or 'self'}/maps").read_text("ascii")
    lines = [line.split() for line in maps.splitlines() if "memfd:pagemesh-kv" in line]
    return sum("w" not in access for _, access, *_ in lines)


def num_descriptors() -> int:
    """Open descriptors of this process."""
    _collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def _collect() -> None:
    """What earlier tests left in cycles must not go between two counts."""
    gc.collect()


def num_memories_held(process_id: int) -> int:
    """KV memories that a process has descriptors of, its own with them."""
    descriptors = Path(f"/proc/{process_id}/fd").iterdir()
    return len(
        {each.stat().st_ino for each in descriptors if "pagemesh-kv" in str(each.readlink())}
    )
