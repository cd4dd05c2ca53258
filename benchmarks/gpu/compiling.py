"""Compiles kernels side by side before they are started: one after the other they take a second each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pagemesh.kernels.launch import Launch, is_interpreted, noting

Run = Callable[[], object]


def compile_ahead(runs: Iterable[Run], most_threads: int = 12) -> str:
    """Compile what the runs would start; gives a sentence about it.

    Nothing depends on its success: what is not compiled here is compiled when it is started. A run sees
    tensors that no kernel has written, and may fail over them.
    """
    if is_interpreted():
        for run in runs:
            run()
        return "kernels are interpreted"
    started = time.perf_counter()
    try:
        from triton.runtime._async_compile import AsyncCompileMode

        threads = min(most_threads, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as executor:
            mode: Any = AsyncCompileMode(executor, ignore_errors=True)
            with mode:
                num_failed = sum(not _note(run) for run in runs)
            num_kernels = len(mode.future_kernels)
    except Exception as error:
        return f"kernels are compiled when they are started ({type(error).__name__}: {error})"
    seconds = time.perf_counter() - started
    return f"{num_kernels} kernels compiled in {seconds:.1f} s; {num_failed} runs failed"


def _note(run: Run) -> bool:
    """Hand a run's kernels to the compiler; whether the run came to its end."""
    with noting() as launches:
        try:
            run()
            has_ended = True
        except Exception as error:
            print(f"  while kernels were noted: {type(error).__name__}: {error}", flush=True)
            has_ended = False
    for launch in launches:
        has_ended &= _warm(launch)
    launches.clear()
    return has_ended


def _warm(launch: Launch) -> bool:
    """Have one kernel compiled; whether that could be asked for."""
    if not all(launch.grid):
        return True
    # A note may hold arguments of the launch that follows it, where the two share a mapping.
    names = launch.kernel.arg_names
    arguments = {name: launch.arguments[name] for name in names if name in launch.arguments}
    try:
        launch.kernel.run(grid=launch.grid, warmup=True, **arguments, **dict(launch.options))
    except Exception as error:
        print(f"  not compiled ahead: {type(error).__name__}: {error}", flush=True)
        return False
    return True
