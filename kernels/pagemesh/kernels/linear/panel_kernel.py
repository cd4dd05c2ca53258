"""Products of rows with a packed weight, on processors that multiply vectors.

Made for few rows, where a library waits for memory and computes by turns: here the next panel of the
weight is fetched while one is multiplied, so that both together take as long as the longer of the two.

A panel is 32 columns of the weight, with the inputs of a step side by side: [steps, 32, inputs]. An item is
a panel and a run of rows, which are taken some at a time, so that their sums stay in registers. Step after
step of inputs is added to them, so that a row's sums are the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa, per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES
from pagemesh.kernels.jit.emit import F32, I8, I32, LANES, Emitter
from pagemesh.kernels.jit.loops import each_item, fold
from pagemesh.kernels.linear.panel_epilogue import PanelEpilogue
from pagemesh.kernels.linear.panel_sums import COLUMNS, Fmas, PairDots, Sums

ARGUMENTS: Final = (
    "counter",  # the next item to be taken, 0 at first
    "num_items",
    "num_chunks",  # item = panel · num_chunks + chunk of the rows
    "num_rows",
    "num_steps",  # of inputs
    "num_columns",  # of the output
    "weight",  # [panels, steps, 32, inputs of a step]
    "bias",  # float32 [panels, 32]
    "inputs",
    "inputs_stride",  # elements from row to row, as all strides
    "output",
    "output_stride",
    "residual",  # like the output, or null
    "residual_stride",
)


class PanelVariant(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    """Of weight, output and residual."""
    uses_dots: bool
    """Whether pairs of bfloat16 are multiplied by one instruction; else inputs are float32."""
    gate: Gate | None


class _Blocking(NamedTuple):
    """How many rows are multiplied at once; says nothing of their bits."""

    whole: int
    """With both halves of a panel."""
    half: int
    """With one half after the other."""


def _blocking() -> _Blocking:
    """By how many registers there are: for sums, weights, and inputs where they cannot come from memory."""
    if current_isa() in (CpuIsa.AVX2, CpuIsa.GENERIC, CpuIsa.NEON, CpuIsa.NEON_BF16):
        return _Blocking(2, 6)
    return _Blocking(12, 0)


@per_isa
def compile_panels(variant: PanelVariant) -> CompiledFunction:
    """The kernel."""
    module = ir.Module("panels")
    _PanelKernel(Emitter(module, "panels"), variant).emit()
    return CompiledFunction(module, "panels", unrolls=False)


class _Block(NamedTuple):
    """What is multiplied at once: some rows with a panel, and where the next one is fetched."""

    inputs: ir.Value
    weight: ir.Value
    fetched: ir.Value
    ahead: ir.Value
    """Elements that are fetched in a step."""


class _PanelKernel:
    def __init__(self, e: Emitter, variant: PanelVariant) -> None:
        self.e = e
        self.b = e.builder
        self.adding: Sums = PairDots(e) if variant.uses_dots else Fmas(e, variant.dtype)
        self.blocking = _blocking()
        self.max_rows = max(self.blocking)
        element = ELEMENT_TYPES[variant.dtype]
        kinds: Mapping[str, ir.Type] = {
            "weight": self.adding.weight_type,
            "bias": F32,
            "inputs": self.adding.input_type,
            "output": element,
            "residual": element,
        }
        self.argument = {
            name: e.argument(index, kinds.get(name)) for index, name in enumerate(ARGUMENTS)
        }
        self.step_size = self.adding.inputs_per_step * COLUMNS
        self.sums = e.scratch(self.max_rows * COLUMNS)
        self.epilogue = PanelEpilogue(e, variant.gate, variant.dtype, self.argument)

    def emit(self) -> None:
        """Take items until none is left."""
        each_item(self.e, self.argument["num_items"], self._item)
        self.b.ret_void()

    def _item(self, item: ir.Value, following: ir.Value) -> None:
        e, b, argument = self.e, self.b, self.argument
        one, num_chunks = e.int64(1), argument["num_chunks"]
        panel, chunk = b.sdiv(item, num_chunks), b.srem(item, num_chunks)
        begin = self._share(argument["num_rows"], chunk, num_chunks)
        end = self._share(argument["num_rows"], b.add(chunk, one), num_chunks)
        num_rows = b.sub(end, begin)
        most = e.int64(self.max_rows)
        num_blocks = b.sdiv(b.add(num_rows, b.sub(most, one)), most)
        panel_size = b.mul(argument["num_steps"], e.int64(self.step_size))
        weight = e.at(argument["weight"], b.mul(panel, panel_size))
        next_panel = b.mul(b.sdiv(following, num_chunks), panel_size)
        ahead = b.sdiv(e.int64(self.step_size), num_blocks)
        with e.loop(e.int64(0), num_blocks) as block:
            first = b.add(begin, self._share(num_rows, block, num_blocks))
            last = b.add(begin, self._share(num_rows, b.add(block, one), num_blocks))
            # Each block of rows has its share of the next panel fetched, in even steps.
            share = b.add(next_panel, self._share(panel_size, block, num_blocks))
            fetched = e.at(argument["weight"], share)
            inputs = e.at(argument["inputs"], b.mul(first, argument["inputs_stride"]))
            self._multiply_any(_Block(inputs, weight, fetched, ahead), b.sub(last, first))
            with e.loop(first, last) as row:
                place = b.mul(b.sub(row, first), e.int64(COLUMNS))
                self.epilogue.finish(row, panel, e.at(self.sums, place))

    def _share(self, total: ir.Value, index: ir.Value, num_shares: ir.Value) -> ir.Value:
        """Where share `index` of `total` begins."""
        return self.b.sdiv(self.b.mul(total, index), num_shares)

    def _multiply_any(self, block: _Block, num_rows: ir.Value) -> None:
        """`_multiply` for a number of rows that is known only now."""
        e, b = self.e, self.b
        after = b.append_basic_block("after")
        switch = b.switch(num_rows, after)
        for size in range(1, self.max_rows + 1):
            case = b.append_basic_block(f"rows{size}")
            switch.add_case(e.int64(size), case)
            b.position_at_end(case)
            if size <= self.blocking.whole:
                self._multiply(block, size, (0, 1))
            else:
                for half in range(2):
                    self._multiply(block, size, (half,))
            b.branch(after)
        b.position_at_end(after)

    def _multiply(self, block: _Block, num_rows: int, halves: Sequence[int]) -> None:
        """Sums of rows with halves of a panel; each fetches its own half of what comes next."""
        e, b = self.e, self.b
        num_inputs = self.adding.inputs_per_step
        half_size = num_inputs * LANES
        rows = [
            e.at(block.inputs, b.mul(e.int64(index), self.argument["inputs_stride"]))
            for index in range(num_rows)
        ]

        def add_step(step: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            ahead = e.at(block.fetched, b.mul(step, block.ahead))
            place = e.at(block.weight, b.mul(step, e.int64(self.step_size)))
            columns = []
            for half in halves:
                self._fetch(e.at(ahead, e.int64(half * half_size)))
                columns.append(e.at(place, e.int64(half * half_size)))
            inputs = [e.at(row, b.mul(step, e.int64(num_inputs))) for row in rows]
            return self.adding.add(sums, inputs, columns)

        zeros = [e.splat(0.0)] * (len(halves) * num_rows)
        sums = iter(fold(e, self.argument["num_steps"], zeros, add_step))
        for index in range(num_rows):
            for half in halves:
                place = e.int64(index * COLUMNS + half * LANES)
                e.store(next(sums), e.at(self.sums, place), 64)

    def _fetch(self, address: ir.Value) -> None:
        """Into the second-level cache."""
        is_read, level, is_data = (ir.Constant(I32, value) for value in (0, 2, 1))
        line = self.b.bitcast(address, I8.as_pointer())
        self.e.intrinsic("llvm.prefetch.p0", ir.VoidType(), line, is_read, level, is_data)
