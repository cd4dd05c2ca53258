"""The control groups around this process, as containers have them. Linux; elsewhere there are none."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


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
