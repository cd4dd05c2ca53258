"""The engines' processes that this one has started."""

from __future__ import annotations

import psutil


def engine_processes(program: str = "pagemesh.engine.process") -> list[psutil.Process]:
    """Those that run this program, oldest first. Other tests' servers may be children as well."""
    children = psutil.Process().children()
    return sorted((c for c in children if program in c.cmdline()), key=psutil.Process.create_time)
