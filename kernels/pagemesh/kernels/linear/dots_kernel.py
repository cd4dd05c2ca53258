"""Products of bfloat16 rows with a packed weight, for processors that multiply pairs of it.

Made for few rows, where a library waits for memory and computes by turns: here the next panel of the
weight is fetched while one is multiplied, so that both together take as long as the longer of the two.

A panel is 32 columns of the weight, with pairs of inputs side by side: [pairs, 32, 2]. An item is a
panel and a run of rows, which are taken up to 12 at a time: 24 vectors of sums stay in registers, and
pair after pair of inputs is added to them, so that a row's sums are the same bits in any company.

With a gate, the first 16 columns of a panel are gates and the others their ups; 16 activated columns come
out of it, and what is between the two never reaches memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llvmlite import ir

from pagemesh.kernels.gated_activation.cpu import FUNCTIONS
from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import per_isa
from pagemesh.kernels.jit.elements import load_elements, store_elements
from pagemesh.kernels.jit.emit import F32, I8, I16, I32, I64, LANES, VEC, VEC_I32, Emitter
from pagemesh.kernels.jit.loops import fold, take_items

COLUMNS = 2 * LANES
"""Of a panel."""
MAX_ROWS = 12
"""That are multiplied at once."""
ARGUMENTS: Mapping[str, ir.Type | None] = {
    "counter": None,  # the next item to be taken, 0 at first
    "num_items": None,
    "num_chunks": None,  # item = panel · num_chunks + chunk of the rows
    "num_rows": None,
    "num_pairs": None,  # of inputs
    "num_columns": None,  # of the output
    "weight": I16,  # [panels, pairs, 32, 2]
    "bias": F32,  # [panels, 32]
    "inputs": I16,
    "inputs_stride": None,  # elements from row to row, as all strides
    "output": I16,
    "output_stride": None,
    "residual": I16,  # like the output, or null
    "residual_stride": None,
}


@per_isa
def compile_dots(gate: Gate | None) -> CompiledFunction:
    """The kernel, for a weight of gates and ups or for a plain one."""
    module = ir.Module("dots")
    _DotsKernel(Emitter(module, "dots"), gate).emit()
    return CompiledFunction(module, "dots", unrolls=False)


class _DotsKernel:
    def __init__(self, e: Emitter, gate: Gate | None) -> None:
        self.e = e
        self.b = e.builder
        self.gate = gate
        self.argument = {
            name: e.argument(index, kind) for index, (name, kind) in enumerate(ARGUMENTS.items())
        }
        self.sums = e.scratch(MAX_ROWS * COLUMNS)

    def emit(self) -> None:
        """Take items until none is left; always one ahead, to know what to fetch."""
        b = self.b
        first = take_items(self.e)
        before = b.block
        head, work, done = (b.append_basic_block(name) for name in ("take", "work", "done"))
        b.branch(head)
        b.position_at_end(head)
        item = b.phi(I64)
        item.add_incoming(first, before)
        b.cbranch(b.icmp_signed("<", item, self.argument["num_items"]), work, done)
        b.position_at_end(work)
        following = take_items(self.e)
        is_last = b.icmp_signed(">=", following, self.argument["num_items"])
        self._item(item, b.select(is_last, item, following))
        item.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)
        b.ret_void()

    def _item(self, item: ir.Value, following: ir.Value) -> None:
        e, b = self.e, self.b
        one, num_chunks = e.int64(1), self.argument["num_chunks"]
        panel, chunk = b.sdiv(item, num_chunks), b.srem(item, num_chunks)
        begin = self._share(self.argument["num_rows"], chunk, num_chunks)
        end = self._share(self.argument["num_rows"], b.add(chunk, one), num_chunks)
        num_rows = b.sub(end, begin)
        num_blocks = b.sdiv(b.add(num_rows, e.int64(MAX_ROWS - 1)), e.int64(MAX_ROWS))
        panel_size = b.mul(self.argument["num_pairs"], e.int64(2 * COLUMNS))
        weight = e.at(self.argument["weight"], b.mul(panel, panel_size))
        next_panel = b.mul(b.sdiv(following, num_chunks), panel_size)
        step = b.sdiv(e.int64(2 * COLUMNS), num_blocks)
        with e.loop(e.int64(0), num_blocks) as block:
            first = b.add(begin, self._share(num_rows, block, num_blocks))
            last = b.add(begin, self._share(num_rows, b.add(block, one), num_blocks))
            # Each block of rows has its share of the next panel fetched, in even steps.
            share = b.add(next_panel, self._share(panel_size, block, num_blocks))
            fetched = e.at(self.argument["weight"], share)
            self._multiply_any(first, b.sub(last, first), weight, fetched, step)
            with e.loop(first, last) as row:
                self._finish(row, b.sub(row, first), panel)

    def _share(self, total: ir.Value, index: ir.Value, num_shares: ir.Value) -> ir.Value:
        """Where share `index` of `total` begins."""
        return self.b.sdiv(self.b.mul(total, index), num_shares)

    def _multiply_any(
        self,
        first: ir.Value,
        num_rows: ir.Value,
        weight: ir.Value,
        fetched: ir.Value,
        step: ir.Value,
    ) -> None:
        """`_multiply` for a number of rows that is known only now."""
        e, b = self.e, self.b
        after = b.append_basic_block("after")
        switch = b.switch(num_rows, after)
        for size in range(1, MAX_ROWS + 1):
            case = b.append_basic_block(f"rows{size}")
            switch.add_case(e.int64(size), case)
            b.position_at_end(case)
            self._multiply(first, size, weight, fetched, step)
            b.branch(after)
        b.position_at_end(after)

    def _multiply(
        self, first: ir.Value, num_rows: int, weight: ir.Value, fetched: ir.Value, step: ir.Value
    ) -> None:
        """Sums of rows with a panel, while `fetched` and what follows is fetched, a step per pair."""
        e, b = self.e, self.b
        rows = [
            e.at(
                self.argument["inputs"],
                b.mul(b.add(first, e.int64(index)), self.argument["inputs_stride"]),
            )
            for index in range(num_rows)
        ]

        def add_pair(pair: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            line = e.at(fetched, b.mul(pair, step))
            for offset in (0, COLUMNS):
                self._fetch(e.at(line, e.int64(offset)))
            place = e.at(weight, b.mul(pair, e.int64(2 * COLUMNS)))
            columns = [self._load_pairs(e.at(place, e.int64(half * COLUMNS))) for half in range(2)]
            grown = []
            for index, row in enumerate(rows):
                address = b.bitcast(e.at(row, b.mul(pair, e.int64(2))), I32.as_pointer())
                inputs = e.broadcast(b.load(address), VEC_I32)
                own = sums[2 * index : 2 * index + 2]
                grown += [
                    self._dot(total, inputs, weights)
                    for total, weights in zip(own, columns, strict=True)
                ]
            return grown

        zeros = [e.splat(0.0)] * (2 * num_rows)
        sums = fold(e, self.argument["num_pairs"], zeros, add_pair)
        for index, total in enumerate(sums):
            e.store(total, e.at(self.sums, e.int64(index * LANES)), 64)

    def _finish(self, row: ir.Value, index: ir.Value, panel: ir.Value) -> None:
        """Bias, activation or residual, rounding."""
        e, b = self.e, self.b
        halves = []
        for offset in (0, LANES):
            place = b.add(b.mul(panel, e.int64(COLUMNS)), e.int64(offset))
            bias = e.load(e.at(self.argument["bias"], place))
            place = b.add(b.mul(index, e.int64(COLUMNS)), e.int64(offset))
            halves.append(b.fadd(e.load(e.at(self.sums, place), 64), bias))
        if self.gate is not None:
            halves = [FUNCTIONS[self.gate.kind](e, self.gate, *halves)]
        begin = b.mul(panel, e.int64(len(halves) * LANES))
        for number, vector in enumerate(halves):
            self._write(row, b.add(begin, e.int64(number * LANES)), vector)

    def _write(self, row: ir.Value, column: ir.Value, vector: ir.Value) -> None:
        """Add the residual, if there is one; columns beyond the last one are left out."""
        e, b = self.e, self.b
        left = b.trunc(b.sub(self.argument["num_columns"], column), I32)
        lanes = ir.Constant(VEC_I32, list(range(LANES)))
        exists = b.icmp_signed("<", lanes, e.broadcast(left, VEC_I32))
        total = self._added(vector, row, column, exists)
        place = b.add(b.mul(row, self.argument["output_stride"]), column)
        address = e.at(self.argument["output"], place)
        store_elements(e, total, address, "bfloat16", exists)

    def _added(
        self, vector: ir.Value, row: ir.Value, column: ir.Value, exists: ir.Value
    ) -> ir.Value:
        e, b = self.e, self.b
        before = b.block
        null = ir.Constant(I16.as_pointer(), None)
        with b.if_then(b.icmp_unsigned("!=", self.argument["residual"], null)):
            place = b.add(b.mul(row, self.argument["residual_stride"]), column)
            address = e.at(self.argument["residual"], place)
            added = b.fadd(vector, load_elements(e, address, "bfloat16", exists))
            adding = b.block
        total = b.phi(VEC)
        total.add_incoming(vector, before)
        total.add_incoming(added, adding)
        return total

    def _load_pairs(self, address: ir.Value) -> ir.Value:
        pairs = self.b.load(self.b.bitcast(address, VEC_I32.as_pointer()))
        pairs.align = 64
        return pairs

    def _fetch(self, address: ir.Value) -> None:
        """Into the second-level cache."""
        is_read, level, is_data = (ir.Constant(I32, value) for value in (0, 2, 1))
        line = self.b.bitcast(address, I8.as_pointer())
        self.e.intrinsic("llvm.prefetch.p0", ir.VoidType(), line, is_read, level, is_data)

    def _dot(self, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", VEC, total, x, y)
