"""Small disks, one for the log of each part, so that each can be full by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

_BALLAST: Final = "ballast"


@contextmanager
def small_disks(folder: Path, names: list[str], size_kib: int) -> Iterator[Path]:
    """A disk for each part, in folders with the parts' names; the logs seem to be in `folder`."""
    disks = folder.parent / "disks"
    folder.mkdir()
    with ExitStack() as stack:
        for name in names:
            disk = disks / name
            disk.mkdir(parents=True)
            size = f"size={size_kib}k"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, name, str(disk)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
            log = "access.jsonl" if name == "access" else f"{name}.log"
            (disk / log).touch()
            (folder / log).symlink_to(disk / log)
        yield disks


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with suppress(OSError), (disk / _BALLAST).open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(64 * 1024))
    assert os.statvfs(disk).f_bavail == 0, f"{disk} is not full"


def make_room(disk: Path) -> None:
    """The end of `fill`."""
    (disk / _BALLAST).unlink()
