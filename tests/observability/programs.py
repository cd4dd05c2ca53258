"""Prometheus' programs, which come with Debian's package `prometheus` and not with pip."""

from __future__ import annotations

import shutil


def program(name: str) -> str:
    """Where it is; fails, saying how to get it, where it is not."""
    path = shutil.which(name)
    assert path is not None, (
        f"there is no {name}: apt-get install --no-install-recommends prometheus"
    )
    return path
