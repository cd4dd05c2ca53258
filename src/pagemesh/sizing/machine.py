"""How much memory this machine, or the container around this process, has. Linux; elsewhere unknown."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pagemesh.sizing.control_groups import control_groups, number_in

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
    for limit, used in _limits(root):
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


def _limits(root: Path) -> list[tuple[int, int]]:
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
