"""Runs a compiled function on all of torch's threads at once; and kernels that do the same to every row of a tensor."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import local
from typing import NamedTuple

import torch
from llvmlite import ir

from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import Recipe
from pagemesh.kernels.jit.emit import Emitter, take_items

Arguments = ctypes.Array[ctypes.c_int64]
"""What a function is called with; the first of them counts the items that are taken, 0 at first."""


class Call(NamedTuple):
    """What `run_parallel` was asked for."""

    function: CompiledFunction
    arguments: Arguments


def run_parallel(function: CompiledFunction, arguments: Arguments, num_threads: int) -> None:
    """Call the function with the address of the arguments, on this thread and on `num_threads` - 1 others.

    The calls share the work among themselves. The others are those of torch's own OpenMP pool: a
    second pool would fight with it for the cores. Where torch brings none, this thread does it all.
    """
    for calls in getattr(_noting, "lists", ()):
        # As they are before the call, which counts.
        calls.append(Call(function, type(arguments)(*arguments)))
    start = _gomp_parallel()
    if num_threads == 1 or start is None:
        function.call(ctypes.addressof(arguments))
    else:
        start(function.address, ctypes.addressof(arguments), num_threads, 0)


@contextmanager
def noting_calls() -> Iterator[list[Call]]:
    """All calls of `run_parallel` that this thread makes meanwhile, which run as ever."""
    calls: list[Call] = []
    before = getattr(_noting, "lists", ())
    _noting.lists = (*before, calls)
    try:
        yield calls
    finally:
        _noting.lists = before


_noting = local()


def thread_number_function() -> int:
    """Address of `omp_get_thread_num`, `int(void)`; 0 where torch brings no such library."""
    library = _libgomp()
    if library is None:
        return 0
    return ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p).value or 0


def release_threads() -> None:
    """End the OpenMP threads that this thread has started; it may start new ones.

    Every thread that computes has a pool of its own, and libgomp puts threads to sleep sooner while all
    pools together are more threads than there are cores. Who has loaded a model for another thread to
    run calls this: a small step then takes up to a third less time.
    """
    library = _libgomp()
    if library is not None and hasattr(library, "omp_pause_resource_all"):
        soft = 1
        library.omp_pause_resource_all(soft)


@functools.cache
def _gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel` (libgomp.h of GCC), if torch brings it."""
    library = _libgomp()
    if library is None:
        return None
    start = library.GOMP_parallel
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return start


@functools.cache
def _libgomp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded, if it is GCC's, or has its functions."""
    if sys.platform == "darwin":
        # LLVM's, which exports GCC's names as well.
        path = Path(torch.__file__).parent / "lib" / "libomp.dylib"
        return ctypes.CDLL(str(path)) if path.is_file() else None
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        paths = {line.split()[-1] for line in lines if "libgomp" in line}
        # Other packages bring copies of their own (sentencepiece), whose threads would come on top.
        own = {path for path in paths if path.startswith(f"{Path(torch.__file__).parent}/")}
        (path,) = own or paths
        return ctypes.CDLL(path)
    except (OSError, ValueError):
        return None


Values = Mapping[str, ir.Value]

# Elements from which on threads share the rows; below, waking the others takes as long as they save.
_MIN_SHARED_ELEMENTS = 1 << 15
_ROWS_AT_ONCE = 8


class RowKernel:
    """Machine code for the rows of a step; any number of threads may run it."""

    def __init__(
        self,
        recipe: Recipe,
        arguments: Mapping[str, ir.Type | None],
        emit_row: Callable[[Emitter, Values, ir.Value], None],
    ) -> None:
        """`arguments` are the kernel's own: what they point to, or None for integers.

        `emit_row` is called with them and the index of the row, once or, if code of the recipe is kept, never.
        """
        self._function = CompiledFunction(recipe, "rows", lambda e: _emit(e, arguments, emit_row))

    def run(
        self, num_rows: int, row_size: int, arguments: Sequence[int], *, in_pieces: bool = True
    ) -> None:
        """Run it for all rows, of about `row_size` elements each: a few after the other for each thread, or its share
        at once, so that no two write to one page, which would wait for each other where it is new."""
        num_threads = 1 if num_rows * row_size < _MIN_SHARED_ELEMENTS else torch.get_num_threads()
        number = _ROWS_AT_ONCE if in_pieces else -(-num_rows // num_threads)
        num_threads = min(num_threads, -(-num_rows // number))
        values = (ctypes.c_int64 * (len(arguments) + 3))(0, num_rows, number, *arguments)
        run_parallel(self._function, values, num_threads)


def _emit(
    e: Emitter,
    arguments: Mapping[str, ir.Type | None],
    emit_row: Callable[[Emitter, Values, ir.Value], None],
) -> None:
    b = e.builder
    num_rows, number = e.argument(1), e.argument(2)
    values = {name: e.argument(3 + i, kind) for i, (name, kind) in enumerate(arguments.items())}
    take, work, done = (b.append_basic_block(name) for name in ("take", "work", "done"))
    b.branch(take)
    b.position_at_end(take)
    begin = take_items(e, number)
    b.cbranch(b.icmp_signed("<", begin, num_rows), work, done)
    b.position_at_end(work)
    end = b.add(begin, number)
    end = b.select(b.icmp_signed("<", end, num_rows), end, num_rows)
    with e.loop(begin, end) as row:
        emit_row(e, values, row)
    b.branch(take)
    b.position_at_end(done)
    b.ret_void()
