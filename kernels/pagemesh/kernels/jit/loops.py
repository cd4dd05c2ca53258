"""Loops whose values stay in registers, and the counter by which threads share a kernel's work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from pagemesh.kernels.jit.emit import I64, Emitter


def take_items(e: Emitter, number: int = 1) -> ir.Value:
    """The first of the next items; the kernel's first argument counts those that are taken, 0 at first."""
    counter = e.builder.bitcast(e.function.args[0], I64.as_pointer())
    return e.builder.atomic_rmw("add", counter, e.int64(number), "monotonic")


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
