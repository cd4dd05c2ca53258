"""Runs a list of recorded kernels in one call: threads are started once, and help with one kernel after the other.

The thread that asks is the first; it goes on to the next kernel when all items of one are done. The others look
which one is on and take what items are left. One that is kept from its core in between holds nobody up: a kernel
waits for helpers that are at an item of it, not for those that never came.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from llvmlite import ir

from pagemesh.kernels.jit.compiled import kernel
from pagemesh.kernels.jit.emit import I8, I32, I64, Emitter
from pagemesh.kernels.jit.parallel import Call, run_parallel, thread_number_function

_ARGUMENTS = (
    "turn",  # the kernel that is on
    "num_calls",
    "calls",  # int64 [calls, 3]: see _CALL
    "thread_number",  # address of int(void): which of the threads this is, the first being 0
    "give_way",  # address of int(void): lets another thread have the core
)
_CALL = ("function", "arguments", "num_helpers")
_RUN = ir.FunctionType(ir.VoidType(), [I8.as_pointer()])
_ASK = ir.FunctionType(I32, [])
_NUM_LOOKS = 20_000
"""At what a thread waits for, before it gives way to others each time: some ten microseconds."""

_Arguments = ctypes.c_int64 * len(_ARGUMENTS)


class Program:
    """Kernels with their arguments, one after the other. Run by one thread at a time."""

    def __init__(self, calls: Sequence[Call]) -> None:
        """Memory that the calls' arguments point to is the caller's to keep."""
        width = max((len(call.arguments) for call in calls), default=1)
        self._arguments = np.zeros((len(calls), width), np.int64)
        for row, call in zip(self._arguments, calls, strict=True):
            row[: len(call.arguments)] = call.arguments
        stride = self._arguments.strides[0]
        first = self._arguments.ctypes.data
        self._calls = np.array(
            [[call.function.address, first + stride * i, 0] for i, call in enumerate(calls)],
            np.int64,
        ).reshape(-1, len(_CALL))
        # Machine code lives as long as these.
        self._functions = [call.function for call in calls]
        self._executor = _compile_executor()
        thread_number = thread_number_function()
        self._is_shared = thread_number != 0
        self._run = _Arguments(
            0, len(calls), self._calls.ctypes.data, thread_number, _address_of_giving_way()
        )

    def __len__(self) -> int:
        """How many kernels there are."""
        return len(self._functions)

    def run(self) -> None:
        """Run them on torch's threads, each when the one before is done."""
        self._arguments[:, 0] = 0
        self._run[0] = 0
        num_threads = torch.get_num_threads() if self._is_shared else 1
        run_parallel(self._executor, self._run, num_threads)


@functools.cache
def _address_of_giving_way() -> int:
    library = ctypes.CDLL(None)
    address = ctypes.cast(library.sched_yield, ctypes.c_void_p).value
    assert address is not None
    return address


@kernel("program")
def _compile_executor(e: Emitter) -> None:
    b = e.builder
    address = e.argument(_ARGUMENTS.index("thread_number"))
    first, ask, helper = (b.append_basic_block(name) for name in ("first", "ask", "helper"))
    b.cbranch(b.icmp_signed("==", address, e.int64(0)), first, ask)
    b.position_at_end(ask)
    number = b.call(b.inttoptr(address, _ASK.as_pointer()), [])
    b.cbranch(b.icmp_signed("==", number, ir.Constant(I32, 0)), first, helper)
    b.position_at_end(first)
    _lead(e)
    b.ret_void()
    b.position_at_end(helper)
    _help(e)
    b.ret_void()


def _lead(e: Emitter) -> None:
    b, turn, num_calls = e.builder, _turn(e), e.argument(_ARGUMENTS.index("num_calls"))
    with e.loop(e.int64(0), num_calls) as index:
        b.store_atomic(index, turn, "release", 8)
        _call(e, index)
        # No item is left to take; those that helpers took may not be done.
        num_helpers = _field(e, index, "num_helpers")

        def is_done() -> ir.Value:
            number = b.load_atomic(num_helpers, "acquire", 8)
            return b.icmp_signed("==", number, e.int64(0))

        _wait(e, is_done)
    b.store_atomic(num_calls, turn, "release", 8)


def _help(e: Emitter) -> None:
    """Whoever comes when all items of a kernel are taken does nothing in it."""
    b, turn, num_calls = e.builder, _turn(e), e.argument(_ARGUMENTS.index("num_calls"))
    before = b.block
    look, work, done = (b.append_basic_block(name) for name in ("look", "work", "done"))
    b.branch(look)
    b.position_at_end(look)
    helped = b.phi(I64)
    helped.add_incoming(e.int64(-1), before)
    _wait(e, lambda: b.icmp_signed("!=", b.load_atomic(turn, "acquire", 8), helped))
    index = b.load_atomic(turn, "acquire", 8)
    b.cbranch(b.icmp_signed("<", index, num_calls), work, done)
    b.position_at_end(work)
    num_helpers = _field(e, index, "num_helpers")
    b.atomic_rmw("add", num_helpers, e.int64(1), "acq_rel")
    _call(e, index)
    b.atomic_rmw("sub", num_helpers, e.int64(1), "acq_rel")
    helped.add_incoming(index, b.block)
    b.branch(look)
    b.position_at_end(done)


def _turn(e: Emitter) -> ir.Value:
    return e.builder.bitcast(e.function.args[0], I64.as_pointer())


def _field(e: Emitter, index: ir.Value, name: str) -> ir.Value:
    """Address of a call's field."""
    calls = e.argument(_ARGUMENTS.index("calls"), I64)
    place = e.builder.mul(index, e.int64(len(_CALL)))
    return e.at(calls, e.builder.add(place, e.int64(_CALL.index(name))))


def _call(e: Emitter, index: ir.Value) -> None:
    b = e.builder
    function = b.inttoptr(b.load(_field(e, index, "function")), _RUN.as_pointer())
    b.call(function, [b.inttoptr(b.load(_field(e, index, "arguments")), I8.as_pointer())])


def _wait(e: Emitter, is_over: Callable[[], ir.Value]) -> None:
    """Look until it is. After a while, somebody else may have the core that is waited for."""
    b = e.builder
    give_way = b.inttoptr(e.argument(_ARGUMENTS.index("give_way")), _ASK.as_pointer())
    before = b.block
    look, next_look, patient, after = (
        b.append_basic_block(name) for name in ("looking", "next_look", "patient", "over")
    )
    b.branch(look)
    b.position_at_end(look)
    num_looks = b.phi(I64)
    num_looks.add_incoming(e.int64(0), before)
    b.cbranch(is_over(), after, next_look)
    b.position_at_end(next_look)
    following = b.add(num_looks, e.int64(1))
    num_looks.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, e.int64(_NUM_LOOKS)), look, patient)
    b.position_at_end(patient)
    b.call(give_way, [])
    num_looks.add_incoming(following, b.block)
    b.branch(look)
    b.position_at_end(after)
