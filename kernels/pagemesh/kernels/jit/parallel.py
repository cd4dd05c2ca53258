"""Runs a compiled function on all of torch's threads at once."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch  # noqa: F401, its import loads the library that is looked for below

from pagemesh.kernels.jit.compiled import CompiledFunction


def run_parallel(function: CompiledFunction, arguments: int, num_threads: int) -> None:
    """Call the function with the address `arguments`, on this thread and on `num_threads` - 1 others.

    The calls share the work among themselves. The others are those of torch's own OpenMP pool: a
    second pool would fight with it for the cores. Where torch brings none, this thread does it all.
    """
    start = _gomp_parallel()
    if num_threads == 1 or start is None:
        function.call(arguments)
    else:
        start(function.address, arguments, num_threads, 0)


@functools.cache
def _gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel` of the libgomp that torch has loaded (libgomp.h of GCC), if it has one."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        (path,) = {line.split()[-1] for line in lines if "libgomp" in line}
        start = ctypes.CDLL(path).GOMP_parallel
    except (OSError, ValueError, AttributeError):
        return None
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return start
