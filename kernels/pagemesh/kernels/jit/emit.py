"""A thin layer over llvmlite's builder for kernels of 16-lane float vectors and counted loops,
whose values stay in registers.

Nothing is reordered or contracted behind the kernel's back: a sum is added in the order in which it is
written, and `fma` is one rounding, so that results are the same bits on every processor that runs
them, however many rows a call has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import copysign
from typing import Literal

from llvmlite import ir

LANES = 16
"""Floats in a vector: one AVX-512 register, or two or four smaller ones."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
VEC = ir.VectorType(F32, LANES)
VEC_I32 = ir.VectorType(I32, LANES)


class Emitter:
    """Emits the body of one function `void(i8*)`."""

    def __init__(self, module: ir.Module, name: str) -> None:
        pointer = I8.as_pointer()
        self._module = module
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), name)
        self._entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self._entry)

    def int64(self, value: int) -> ir.Constant:
        """A constant."""
        return ir.Constant(I64, value)

    def splat(self, value: float) -> ir.Constant:
        """A constant in all lanes."""
        # Of the two zeros, which are equal, each its own.
        return _splat(value, copysign(1.0, value))

    def broadcast(self, scalar: ir.Value, vector_type: ir.VectorType = VEC) -> ir.Value:
        """A scalar in all lanes."""
        empty = ir.Constant(vector_type, ir.Undefined)
        first = self.builder.insert_element(empty, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, empty, int_lanes(0))

    def scratch(self, num_elements: int, element: ir.Type = F32) -> ir.Value:
        """Memory of this call, aligned for vectors."""
        with self.builder.goto_entry_block():
            array = self.builder.alloca(element, num_elements)
        array.align = 64
        return array

    def at(self, base: ir.Value, index: ir.Value) -> ir.Value:
        """Address of an element."""
        return self.builder.gep(base, [index])

    def argument(self, index: int, pointer_to: ir.Type | None = None) -> ir.Value:
        """The index-th 64-bit argument, an integer unless it points to something."""
        arguments = self.builder.bitcast(self.function.args[0], I64.as_pointer())
        value = self.builder.load(self.at(arguments, self.int64(index)))
        if pointer_to is None:
            return value
        return self.builder.inttoptr(value, pointer_to.as_pointer())

    def load(self, address: ir.Value, align: int = 4) -> ir.Value:
        """16 floats."""
        vector = self.builder.load(self.builder.bitcast(address, VEC.as_pointer()))
        vector.align = align
        return vector

    def store(self, vector: ir.Value, address: ir.Value, align: int = 4) -> None:
        """Write a vector."""
        instruction = self.builder.store(
            vector, self.builder.bitcast(address, vector.type.as_pointer())
        )
        instruction.align = align

    @contextmanager
    def loop(self, begin: ir.Value, end: ir.Value, step: int = 1) -> Iterator[ir.Value]:
        """for index in range(begin, end, step)."""
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("head")
        body = builder.append_basic_block("body")
        after = builder.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(begin, before)
        builder.cbranch(builder.icmp_signed("<", index, end), body, after)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, self.int64(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    def intrinsic(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """What LLVM's intrinsic of that full name gives."""
        function = self._module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self._module, kind, name)
        return self.builder.call(function, arguments)

    def call(self, name: str, *arguments: ir.Value) -> ir.Value:
        """An LLVM intrinsic whose arguments and result have one type."""
        kind = arguments[0].type
        suffix = f"v{LANES}f32" if kind == VEC else "f32"
        return self.intrinsic(f"{name}.{suffix}", kind, *arguments)

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x · y + z, rounded once."""
        return self.call("llvm.fma", x, y, z)

    def shuffle(self, x: ir.Value, y: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """Lanes of x (0 to 15) and y (16 to 31)."""
        return self.builder.shuffle_vector(x, y, constant_vector(I32, tuple(lanes)))

    def lane(self, vector: ir.Value, index: int) -> ir.Value:
        """One lane in all lanes."""
        return self.shuffle(vector, vector, [index] * LANES)


@functools.cache
def constant_vector(element: ir.Type, numbers: tuple[int, ...]) -> ir.Constant:
    """One that is used often: its text, which it keeps, takes longer to make than that of an instruction."""
    return ir.Constant(ir.VectorType(element, len(numbers)), list(numbers))


@functools.cache
def _splat(value: float, sign: float) -> ir.Constant:
    return ir.Constant(VEC, [value] * LANES)


def int_lanes(number: int) -> ir.Constant:
    """A constant in all lanes, int32."""
    return constant_vector(I32, (number,) * LANES)


def fetch(e: Emitter, address: ir.Value, level: Literal[1, 2] = 2) -> None:
    """Ask for the line at an address, to be in the cache of a level when it is read."""
    is_read, locality, is_data = (ir.Constant(I32, value) for value in (0, 4 - level, 1))
    line = e.builder.bitcast(address, I8.as_pointer())
    e.intrinsic("llvm.prefetch.p0", ir.VoidType(), line, is_read, locality, is_data)


def take_items(e: Emitter, number: ir.Value | None = None) -> ir.Value:
    """The first of the next items, one or so many; the kernel's first argument counts those that are taken, 0 at first."""
    counter = e.builder.bitcast(e.function.args[0], I64.as_pointer())
    return e.builder.atomic_rmw("add", counter, number or e.int64(1), "monotonic")


def each_item(e: Emitter, num_items: ir.Value, work: Callable[[ir.Value, ir.Value], None]) -> None:
    """work(item, following) until none is left: one is always taken ahead, to know what to fetch.

    Behind the last, `following` is the item itself.
    """
    b = e.builder
    first = take_items(e)
    before = b.block
    head, body, done = (b.append_basic_block(name) for name in ("take", "work", "done"))
    b.branch(head)
    b.position_at_end(head)
    item = b.phi(I64)
    item.add_incoming(first, before)
    b.cbranch(b.icmp_signed("<", item, num_items), body, done)
    b.position_at_end(body)
    following = take_items(e)
    is_last = b.icmp_signed(">=", following, num_items)
    work(item, b.select(is_last, item, following))
    item.add_incoming(following, b.block)
    b.branch(head)
    b.position_at_end(done)


def fold(
    e: Emitter,
    num_steps: ir.Value,
    values: Sequence[ir.Value],
    step: Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """values = step(index, values) for index in range(num_steps).

    A true loop, that LLVM must not unroll: it gives long code without one an order in which the values
    do not fit into registers.
    """
    b = e.builder
    before = b.block
    head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(e.int64(0), before)
    carried = [b.phi(value.type) for value in values]
    for phi, value in zip(carried, values, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", index, num_steps), body, after)
    b.position_at_end(body)
    for phi, value in zip(carried, step(index, carried), strict=True):
        phi.add_incoming(value, b.block)
    index.add_incoming(b.add(index, e.int64(1)), b.block)
    b.branch(head)
    b.position_at_end(after)
    return carried


def repeat(e: Emitter, goes_on: Callable[[], ir.Value], work: Callable[[], None]) -> None:
    """work() as long as goes_on()."""
    b = e.builder
    head, body, after = (b.append_basic_block(name) for name in ("look", "again", "over"))
    b.branch(head)
    b.position_at_end(head)
    b.cbranch(goes_on(), body, after)
    b.position_at_end(body)
    work()
    b.branch(head)
    b.position_at_end(after)


def local(e: Emitter, kind: ir.Type, value: ir.Value) -> ir.Value:
    """Address of a variable of this call, which has a value."""
    place = e.scratch(1, kind)
    e.builder.store(value, place)
    return place


def transposed(e: Emitter, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """16 vectors of 16 lanes of 32 bits: lane m of vector n becomes lane n of vector m.

    Squares of half the size change places until they are single numbers: 64 instructions.
    """
    found = list(rows)
    size = LANES // 2
    while size:
        for first in range(LANES):
            if first & size:
                continue
            upper, lower = found[first], found[first + size]
            lanes = range(LANES)
            # Of the upper rows, the right-hand squares go down; of the lower ones, the left-hand squares up.
            found[first] = e.shuffle(
                upper, lower, [lane if not lane & size else LANES + lane - size for lane in lanes]
            )
            found[first + size] = e.shuffle(
                upper, lower, [lane + size if not lane & size else LANES + lane for lane in lanes]
            )
        size //= 2
    return found
