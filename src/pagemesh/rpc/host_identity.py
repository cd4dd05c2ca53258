"""Where a process runs, as others can compare it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pagemesh.v1 import kv_transfer_pb2


def host_identity(*, on_device: bool = False) -> kv_transfer_pb2.HostIdentity | None:
    """Of this process, with its KV on a device or not; None where no process reads another's memory."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return kv_transfer_pb2.HostIdentity(
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
            pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
            user_id=os.geteuid(),
            on_device=on_device,
        )
    except OSError:
        return None
