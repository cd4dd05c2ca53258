"""How much memory and how many cores this machine has, or the container around this process. Linux."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_UNLIMITED = 1 << 60
"""cgroup v1 says this, or more, when there is no limit."""

_NAMES = {
    True: ("memory.max", "memory.current"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""Files of limit and usage, in unified control groups and those of version 1."""


class MachineMemory(NamedTuple):
    """Bytes."""

    total: int
    """All there is: the machine's memory, or the smaller limit of a control group."""

    available: int
    """What could be used now without pushing anybody out, as far as the limits allow."""


class ProcessMemory(NamedTuple):
    """Bytes of this process."""

    resident: int

    peak: int
    """Most that was resident since the process began, or since `reset_peak`."""


def machine_memory(root: Path = Path("/")) -> MachineMemory | None:
    """The memory under the limits of this process's control groups; None where nobody says."""
    info = _kib_fields(root / "proc/meminfo")
    if "MemTotal" not in info:
        return None
    total, available = info["MemTotal"], info.get("MemAvailable", info["MemTotal"])
    for limit, used in _memory_limits(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return MachineMemory(total, available)


def process_memory(root: Path = Path("/")) -> ProcessMemory | None:
    """The memory of this process; None where nobody says."""
    status = _kib_fields(root / "proc/self/status")
    if "VmRSS" not in status:
        return None
    return ProcessMemory(status["VmRSS"], status.get("VmHWM", status["VmRSS"]))


def reset_peak(root: Path = Path("/")) -> bool:
    """Count the process's peak from now on; False where that cannot be."""
    try:
        # proc(5): 5 resets the peak resident set size to the present one.
        (root / "proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _memory_limits(root: Path) -> list[tuple[int, int]]:
    """(limit, used without reclaimable file pages) of this process's control group and those above it."""
    found = []
    for folder, is_unified in control_groups(root, "memory"):
        limit_name, used_name = _NAMES[is_unified]
        limit = number_in(folder / limit_name)
        if limit is None or limit >= _UNLIMITED:
            continue
        used = number_in(folder / used_name) or 0
        found.append((limit, max(0, used - _inactive_file(folder))))
    return found


def _inactive_file(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(fields.get("inactive_file", 0))


def _kib_fields(path: Path) -> dict[str, int]:
    """`Name:   123 kB` lines, in bytes."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines]
    return {w[0].rstrip(":"): int(w[1]) * 1024 for w in words if len(w) == 3 and w[2] == "kB"}


def usable_cores(root: Path = Path("/")) -> int:
    """At least one."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, core_limit(root) or cores)


def core_limit(root: Path = Path("/")) -> int | None:
    """Cores that the control groups around this process grant it; None without a limit.

    Half a core counts as one: a thread that waits for its turn now and then loses less than a core that idles.
    """
    limits = [math.ceil(limit) for limit in _core_limits(root)]
    return min(limits) if limits else None


def _core_limits(root: Path) -> Iterator[float]:
    """Cores that control groups grant."""
    for group in control_groups(root, "cpu"):
        quota, period = _unified(group) if group.is_unified else _version_1(group)
        if quota is not None and period and quota > 0:
            yield quota / period


def _unified(group: ControlGroup) -> tuple[int | None, int | None]:
    try:
        quota, period = (group.folder / "cpu.max").read_text(encoding="ascii").split()
        return int(quota), int(period)
    except (OSError, ValueError):
        # No file at the root, and "max" where there is no limit.
        return None, None


def _version_1(group: ControlGroup) -> tuple[int | None, int | None]:
    return number_in(group.folder / "cpu.cfs_quota_us"), number_in(
        group.folder / "cpu.cfs_period_us"
    )


class ControlGroup(NamedTuple):
    """One that limits this process, or one above it."""

    folder: Path

    is_unified: bool
    """Of version 2, whose files have other names than those of version 1."""


def control_groups(root: Path, controller: str) -> list[ControlGroup]:
    """Those that may limit what `controller` ("memory", "cpu") is for, the innermost first."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders = (base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
        found += [ControlGroup(folder, controllers == "") for folder in folders]
    return found


def number_in(path: Path) -> int | None:
    """The number in a file; None when there is none ("max")."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
