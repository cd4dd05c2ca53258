"""How many cores this process may use: those that it may run on, or fewer where a container's share is smaller."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from pagemesh.sizing.control_groups import ControlGroup, control_groups, number_in


def usable_cores(root: Path = Path("/")) -> int:
    """At least one."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, core_limit(root) or cores)


def core_limit(root: Path = Path("/")) -> int | None:
    """Cores that the control groups around this process grant it; None without a limit.

    Half a core counts as one: a thread that waits for its turn now and then loses less than a core that idles.
    """
    limits = [math.ceil(limit) for limit in _limits(root)]
    return min(limits) if limits else None


def _limits(root: Path) -> Iterator[float]:
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
