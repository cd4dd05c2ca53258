"""Kernels that do the same to every row of a tensor, in an order of its own for each row."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import torch
from llvmlite import ir

from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.emit import Emitter
from pagemesh.kernels.jit.loops import take_items
from pagemesh.kernels.jit.parallel import run_parallel

Values = Mapping[str, ir.Value]

# Elements from which on threads share the rows; below, waking the others takes as long as they save.
_MIN_SHARED_ELEMENTS = 1 << 15
_ROWS_AT_ONCE = 8


class RowKernel:
    """Machine code for the rows of a step; any number of threads may run it."""

    def __init__(
        self,
        arguments: Mapping[str, ir.Type | None],
        emit_row: Callable[[Emitter, Values, ir.Value], None],
    ) -> None:
        """`arguments` are the kernel's own: what they point to, or None for integers.

        `emit_row` is called once with them and the index of the row.
        """
        module = ir.Module("rows")
        _emit(Emitter(module, "rows"), arguments, emit_row)
        self._function = CompiledFunction(module, "rows")

    def run(self, num_rows: int, row_size: int, arguments: Sequence[int]) -> None:
        """Run it for all rows, of about `row_size` elements each."""
        shared = num_rows * row_size >= _MIN_SHARED_ELEMENTS
        values = (ctypes.c_int64 * (len(arguments) + 2))(0, num_rows, *arguments)
        num_threads = torch.get_num_threads() if shared else 1
        run_parallel(self._function, values, num_threads)


def _emit(
    e: Emitter,
    arguments: Mapping[str, ir.Type | None],
    emit_row: Callable[[Emitter, Values, ir.Value], None],
) -> None:
    b = e.builder
    num_rows = e.argument(1)
    values = {name: e.argument(2 + i, kind) for i, (name, kind) in enumerate(arguments.items())}
    take, work, done = (b.append_basic_block(name) for name in ("take", "work", "done"))
    b.branch(take)
    b.position_at_end(take)
    begin = take_items(e, _ROWS_AT_ONCE)
    b.cbranch(b.icmp_signed("<", begin, num_rows), work, done)
    b.position_at_end(work)
    end = b.add(begin, e.int64(_ROWS_AT_ONCE))
    end = b.select(b.icmp_signed("<", end, num_rows), end, num_rows)
    with e.loop(begin, end) as row:
        emit_row(e, values, row)
    b.branch(take)
    b.position_at_end(done)
    b.ret_void()
