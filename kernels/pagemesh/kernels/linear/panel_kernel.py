"""Matmuls of rows with a weight in panels, on processors that multiply vectors.

Made for few rows, where a library waits for memory and computes by turns: here the next panel of the
weight is fetched while one is multiplied, so that both together take as long as the longer of the two.

A panel is 32 columns of the weight, with the inputs of a step side by side: [steps, 32, inputs]. An item is
a panel and a run of rows, which are taken some at a time, so that their sums stay in registers. Step after
step of inputs is added to them, so that a row's sums are the same bits in any company.

Whole numbers are multiplied as whole numbers, and their sums scaled when they are complete.

Where a weight has to be made float32, that is done once for all rows of an item, if they are many: part after
part of a panel lies in the first-level cache in float32 while the rows pass, and their sums wait in memory. So
does part after part of a quantised weight, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.compiled import kernel
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES
from pagemesh.kernels.jit.emit import F32, I8, I32, LANES, Emitter, each_item, fetch, fold
from pagemesh.kernels.linear.packed_parts import PART_INPUTS, PackedForm
from pagemesh.kernels.linear.panel_sums import COLUMNS, Dots, Fmas, PanelEpilogue, Sums, make_sums
from pagemesh.kernels.linear.unpacking import Unpacking

ARGUMENTS: Final = (
    "counter",  # the next item to be taken, 0 at first
    "num_items",
    "num_chunks",  # item = panel · num_chunks + chunk of the rows
    "num_rows",
    "num_steps",  # of inputs
    "num_columns",  # of the output
    "weight",  # [panels, steps, 32, inputs of a step]
    "bias",  # float32 [panels, 32]
    "scales",  # like the bias, of whole numbers
    "starts",  # int32 [panels, 32], what their sums begin with
    "inputs",
    "inputs_stride",  # elements from row to row, as all strides
    "output",
    "output_stride",
    "residual",  # like the output, or null
    "residual_stride",
    "row_scales",  # float32 [rows], of whole numbers
)


CHUNK_ROWS: Final = 192
"""Most rows of an item: they and a panel fit the second-level cache."""

_FEW_ROWS: Final = 16
_MOST_NARROW: Final = 8
"""Rows that are multiplied with a weight as it is, and those of them at once; more, with one in float32."""


class PanelVariant(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    """Of output and residual, and of a weight that is no whole numbers."""
    dots: Dots | None
    """What is multiplied by one instruction: pairs of bfloat16, or whole numbers; else inputs are float32."""
    gate: Gate | None
    packed: PackedForm | None = None
    """Of a weight that is no dense one; its order is "pairs" with these dots and "singles" without."""

    @property
    def is_int8(self) -> bool:
        """Whether rows and weight are whole numbers."""
        return self.dots in ("quads", "words")


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


@kernel("panels")
def compile_panels(e: Emitter, variant: PanelVariant) -> None:
    """The kernel."""
    _PanelKernel(e, variant).emit()


class _Block(NamedTuple):
    """What is multiplied at once: some rows with a panel or a part of it."""

    inputs: ir.Value
    sums: ir.Value
    """float32 or int32 [rows, 32]"""
    weight: ir.Value
    num_steps: ir.Value


class _PanelKernel:
    def __init__(self, e: Emitter, variant: PanelVariant) -> None:
        self.e = e
        self.b = e.builder
        form = variant.packed
        of_fmas = variant.dtype if form is None else "float32"
        self.adding = make_sums(e, variant.dots, of_fmas)
        self.unpacking = None if form is None else Unpacking(e, form)
        self.blocking = _blocking()
        self.most = max(self.blocking)
        self.widens = form is None and variant.dtype != "float32" and variant.dots is None
        self.in_part: Sums = Fmas(e, "float32") if self.widens else self.adding
        element = ELEMENT_TYPES[variant.dtype]
        kinds: Mapping[str, ir.Type] = {
            "weight": self.adding.weight_type if form is None else I8,
            "bias": F32,
            "scales": F32,
            "starts": I32,
            "row_scales": F32,
            "inputs": self.adding.input_type,
            "output": element,
            "residual": element,
        }
        self.argument = {
            name: e.argument(index, kinds.get(name)) for index, name in enumerate(ARGUMENTS)
        }
        self.step_size = self.adding.inputs_per_step * COLUMNS
        uses_parts = self.widens or form is not None
        self.sums = e.scratch((CHUNK_ROWS if uses_parts else self.most) * COLUMNS)
        part_size = PART_INPUTS * COLUMNS if uses_parts else 0
        self.part = e.scratch(part_size, self.in_part.weight_type)
        self.epilogue = PanelEpilogue(
            e, variant.gate, variant.dtype, self.argument, is_int8=variant.is_int8
        )

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
        next_panel = b.sdiv(following, num_chunks)
        if self.unpacking is not None:
            self._parts(panel, next_panel, begin, end, range(1, self.most + 1))
            return
        if not self.widens:
            self._blocks(panel, next_panel, begin, end, self.most)
            return
        are_few = b.icmp_signed("<=", b.sub(end, begin), e.int64(_FEW_ROWS))
        with b.if_else(are_few) as (few, many):
            with few:
                self._blocks(panel, next_panel, begin, end, min(_MOST_NARROW, self.most))
            with many:
                # Of more rows than fit one block, even shares are at least half a block.
                self._parts(panel, next_panel, begin, end, range(self.most // 2, self.most + 1))

    def _blocks(
        self, panel: ir.Value, next_panel: ir.Value, begin: ir.Value, end: ir.Value, most: int
    ) -> None:
        """Block after block of at most so many rows with the whole panel."""
        e, b, argument = self.e, self.b, self.argument
        num_rows = b.sub(end, begin)
        num_blocks = self._num_blocks(num_rows, most)
        panel_size = b.mul(argument["num_steps"], e.int64(self.step_size))
        ahead = b.sdiv(e.int64(self.step_size), num_blocks)
        with e.loop(e.int64(0), num_blocks) as block:
            first = b.add(begin, self._share(num_rows, block, num_blocks))
            last = b.add(begin, self._share(num_rows, b.add(block, e.int64(1)), num_blocks))
            # Each block of rows has its share of the next panel fetched, in even steps.
            share = self._share(panel_size, block, num_blocks)
            fetched = e.at(self._panel(next_panel), share)
            inputs = e.at(argument["inputs"], b.mul(first, argument["inputs_stride"]))
            first_column = b.mul(panel, e.int64(COLUMNS))
            each = _Block(inputs, self.sums, self._panel(panel), argument["num_steps"])

            def multiply(size: int, halves: Sequence[int]) -> None:
                places = [b.add(first_column, e.int64(half * LANES)) for half in halves]
                starts = [self.adding.start(e.at(argument["starts"], place)) for place in places]
                self._multiply(self.adding, each, size, halves, starts * size, (fetched, ahead))

            self._in_halves(b.sub(last, first), range(1, most + 1), multiply)
            self._finish(panel, first, last)

    def _parts(
        self,
        panel: ir.Value,
        next_panel: ir.Value,
        begin: ir.Value,
        end: ir.Value,
        sizes: Sequence[int],
    ) -> None:
        """Part after part of a panel, made ready in the first-level cache, with all rows, in blocks of these sizes."""
        e, b, argument = self.e, self.b, self.argument
        num_rows = b.sub(end, begin)
        num_blocks = self._num_blocks(num_rows, self.most)
        num_inputs = self._num_inputs()
        with e.loop(e.int64(0), b.mul(num_rows, e.int64(COLUMNS)), LANES) as place:
            e.store(e.splat(0.0), e.at(self.sums, place), 64)
        with e.loop(e.int64(0), num_inputs, PART_INPUTS) as first_input:
            last_input = b.add(first_input, e.int64(PART_INPUTS))
            is_whole = b.icmp_signed("<", last_input, num_inputs)
            last_input = b.select(is_whole, last_input, num_inputs)
            self._make_part(panel, next_panel, first_input, last_input)
            part_inputs = b.sub(last_input, first_input)
            num_steps = b.sdiv(part_inputs, e.int64(self.in_part.inputs_per_step))
            with e.loop(e.int64(0), num_blocks) as block:
                first = self._share(num_rows, block, num_blocks)
                last = self._share(num_rows, b.add(block, e.int64(1)), num_blocks)
                row = b.mul(b.add(begin, first), argument["inputs_stride"])
                inputs = e.at(argument["inputs"], b.add(row, first_input))
                sums = e.at(self.sums, b.mul(first, e.int64(COLUMNS)))
                each = _Block(inputs, sums, self.part, num_steps)

                def go_on(size: int, halves: Sequence[int]) -> None:
                    before = [e.load(place, 64) for place in self._places(each, size, halves)]
                    self._multiply(self.in_part, each, size, halves, before)

                self._in_halves(b.sub(last, first), sizes, go_on)
        self._finish(panel, begin, end)

    def _make_part(
        self, panel: ir.Value, next_panel: ir.Value, first: ir.Value, last: ir.Value
    ) -> None:
        """Inputs of a panel, as they are multiplied; the same ones of the next panel are fetched."""
        e, b = self.e, self.b
        if self.unpacking is None:
            steps = (b.sdiv(end, e.int64(self.adding.inputs_per_step)) for end in (first, last))
            self._widen(panel, next_panel, *steps)
            return
        panel_bytes = self.unpacking.panel_bytes(self._num_inputs())
        begin = self.unpacking.part_place(first)
        source, ahead = (
            e.at(self.argument["weight"], b.add(b.mul(each, panel_bytes), begin))
            for each in (panel, next_panel)
        )
        self.unpacking.emit(source, ahead, b.sub(last, first), self.part)

    def _widen(
        self, panel: ir.Value, next_panel: ir.Value, first: ir.Value, last: ir.Value
    ) -> None:
        """Steps of a panel, as float32 [inputs, 32]; the same ones of the next panel are fetched."""
        e, b, adding = self.e, self.b, self.adding
        assert isinstance(adding, Fmas), "others multiply a weight as it is"
        with e.loop(first, last) as step:
            place = b.mul(step, e.int64(self.step_size))
            ahead = e.at(self._panel(next_panel), place)
            columns = []
            for half in range(2):
                offset = e.int64(half * self.step_size // 2)
                fetch(e, e.at(ahead, offset))
                columns.append(e.at(self._panel(panel), b.add(place, offset)))
            target = b.mul(b.sub(step, first), e.int64(self.step_size))
            vectors = (vector for of_input in adding.weights(columns) for vector in of_input)
            for number, vector in enumerate(vectors):
                offset = b.add(target, e.int64(number * LANES))
                e.store(vector, e.at(self.part, offset), 64)

    def _finish(self, panel: ir.Value, first: ir.Value, last: ir.Value) -> None:
        e, b = self.e, self.b
        with e.loop(first, last) as row:
            place = b.mul(b.sub(row, first), e.int64(COLUMNS))
            self.epilogue.finish(row, panel, e.at(self.sums, place))

    def _num_inputs(self) -> ir.Value:
        return self.b.mul(self.argument["num_steps"], self.e.int64(self.adding.inputs_per_step))

    def _panel(self, number: ir.Value) -> ir.Value:
        size = self.b.mul(self.argument["num_steps"], self.e.int64(self.step_size))
        return self.e.at(self.argument["weight"], self.b.mul(number, size))

    def _num_blocks(self, num_rows: ir.Value, most: int) -> ir.Value:
        return self.b.sdiv(self.b.add(num_rows, self.e.int64(most - 1)), self.e.int64(most))

    def _share(self, total: ir.Value, index: ir.Value, num_shares: ir.Value) -> ir.Value:
        """Where share `index` of `total` begins."""
        return self.b.sdiv(self.b.mul(total, index), num_shares)

    def _in_halves(
        self,
        num_rows: ir.Value,
        sizes: Sequence[int],
        multiply: Callable[[int, Sequence[int]], None],
    ) -> None:
        """Multiply a number of rows that is known only now, with both halves of a panel at once or in turn."""
        e, b = self.e, self.b
        after = b.append_basic_block("after")
        switch = b.switch(num_rows, after)
        for size in sizes:
            case = b.append_basic_block(f"rows{size}")
            switch.add_case(e.int64(size), case)
            b.position_at_end(case)
            at_once = [(0, 1)] if size <= self.blocking.whole else [(0,), (1,)]
            for halves in at_once:
                multiply(size, halves)
            b.branch(after)
        b.position_at_end(after)

    def _multiply(
        self,
        adding: Sums,
        block: _Block,
        num_rows: int,
        halves: Sequence[int],
        sums: Sequence[ir.Value],
        fetching: tuple[ir.Value, ir.Value] | None = None,
    ) -> None:
        """Add rows' products with halves of a panel to `sums`, and store them.

        `fetching` is what comes next, of which these halves are fetched, and the elements of it for a step.
        """
        e, b = self.e, self.b
        num_inputs = adding.inputs_per_step
        half_size = num_inputs * LANES
        rows = [
            e.at(block.inputs, b.mul(e.int64(index), self.argument["inputs_stride"]))
            for index in range(num_rows)
        ]

        def add_step(step: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            place = e.at(block.weight, b.mul(step, e.int64(2 * half_size)))
            columns = []
            for half in halves:
                if fetching is not None:
                    ahead = e.at(fetching[0], b.mul(step, fetching[1]))
                    fetch(e, e.at(ahead, e.int64(half * half_size)))
                columns.append(e.at(place, e.int64(half * half_size)))
            inputs = [e.at(row, b.mul(step, e.int64(num_inputs))) for row in rows]
            return adding.add(sums, inputs, columns)

        sums = fold(e, block.num_steps, sums, add_step)
        for total, place in zip(sums, self._places(block, num_rows, halves), strict=True):
            e.store(total, place, 64)

    def _places(self, block: _Block, num_rows: int, halves: Sequence[int]) -> list[ir.Value]:
        """Where the sums of rows with halves of a panel lie, in the order of `Sums.add`."""
        return [
            self.e.at(block.sums, self.e.int64(index * COLUMNS + half * LANES))
            for index in range(num_rows)
            for half in halves
        ]
