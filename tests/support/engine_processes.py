"""The engines' processes that a worker, or a test in its place, has started."""

from __future__ import annotations

import psutil


def engine_processes(
    program: str = "pagemesh.engine.process", *, of: int | None = None
) -> list[psutil.Process]:
    """Children that run this program, oldest first, of this process or of the one with that id.

    Other tests' servers may be children as well.
    """
    children = psutil.Process(of).children()
    return sorted((c for c in children if program in c.cmdline()), key=psutil.Process.create_time)
