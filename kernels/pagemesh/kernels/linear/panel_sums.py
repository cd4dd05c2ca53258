"""The sums of a panel: how inputs are multiplied and added, which settles the bits, and what happens to the sums then.

`PairDots` adds the products of two inputs at once, as AVX512-BF16 does; `Fmas` adds one after the other,
each product and sum rounded once, which every processor does alike. `QuadDots` and `WordDots` add whole numbers, whose
sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

from llvmlite import ir

from pagemesh.kernels.gated_activation.cpu import FUNCTIONS
from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.byte_dots import dot_quads, dot_words, pair_of_words, words_of_bytes
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_elements, store_elements
from pagemesh.kernels.jit.emit import F32, I8, I16, I32, LANES, VEC, VEC_I32, Emitter
from pagemesh.kernels.jit.pair_dots import dot_pairs, half_of_pairs

COLUMNS: Final = 2 * LANES
"""Of a panel: two vectors, side by side."""


Dots = Literal["pairs", "quads", "words"]
"""What an instruction adds to a sum at once: the products of a pair of bfloat16, of four bytes, of two words."""


class Sums(Protocol):
    """One kind of arithmetic."""

    @property
    def inputs_per_step(self) -> int:
        """That are multiplied before the next ones are looked at."""

    @property
    def weight_type(self) -> ir.Type:
        """Of the weight's elements; a panel is [steps, 32, inputs of a step]."""

    @property
    def input_type(self) -> ir.Type:
        """Of the inputs' elements."""

    def start(self, address: ir.Value) -> ir.Value:
        """What the sums of 16 columns begin with; of whole numbers, int32 in memory."""

    def add(
        self, sums: Sequence[ir.Value], rows: Sequence[ir.Value], columns: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Sums with a step more: those of the first row with each vector of columns, of the second …

        `rows` are addresses of a step's inputs, `columns` of its weights for 16 columns.
        """


class PairDots:
    """bfloat16 times bfloat16, in pairs."""

    inputs_per_step: int = 2
    weight_type: ir.Type = I16
    input_type: ir.Type = I16

    def __init__(self, e: Emitter) -> None:
        self._e = e

    def start(self, address: ir.Value) -> ir.Value:
        return self._e.splat(0.0)

    def add(
        self, sums: Sequence[ir.Value], rows: Sequence[ir.Value], columns: Sequence[ir.Value]
    ) -> list[ir.Value]:
        e, b = self._e, self._e.builder
        weights = [load_pairs(e, address) for address in columns]
        grown = []
        remaining = iter(sums)
        for row in rows:
            inputs = e.broadcast(b.load(b.bitcast(row, I32.as_pointer())), VEC_I32)
            grown += [dot_pairs(e, next(remaining), inputs, each) for each in weights]
        return grown


class Fmas:
    """float32 times what a weight's elements are as float32."""

    input_type: ir.Type = F32

    def __init__(self, e: Emitter, dtype: str) -> None:
        self._e = e
        self._dtype = dtype
        self.inputs_per_step = 2 if dtype == "bfloat16" else 1
        self.weight_type = ELEMENT_TYPES[dtype]

    def start(self, address: ir.Value) -> ir.Value:
        return self._e.splat(0.0)

    def add(
        self, sums: Sequence[ir.Value], rows: Sequence[ir.Value], columns: Sequence[ir.Value]
    ) -> list[ir.Value]:
        e = self._e
        grown = list(sums)
        for number, weights in enumerate(self.weights(columns)):
            for index, row in enumerate(rows):
                inputs = e.broadcast(e.builder.load(e.at(row, e.int64(number))))
                for half, each in enumerate(weights):
                    place = index * len(weights) + half
                    grown[place] = e.fma(inputs, each, grown[place])
        return grown

    def weights(self, columns: Sequence[ir.Value]) -> list[list[ir.Value]]:
        """Of each input of a step: a vector for each 16 columns."""
        e = self._e
        if self._dtype != "bfloat16":
            return [[load_elements(e, address, self._dtype) for address in columns]]
        pairs = [load_pairs(e, address) for address in columns]
        return [
            [half_of_pairs(e, each, is_upper=is_upper) for each in pairs]
            for is_upper in (False, True)
        ]


class QuadDots:
    """Signed bytes times unsigned ones, four at once. What sums begin with makes up for rows that are 128 too much."""

    inputs_per_step: int = 4
    weight_type: ir.Type = I8
    input_type: ir.Type = I8

    def __init__(self, e: Emitter) -> None:
        self._e = e

    def start(self, address: ir.Value) -> ir.Value:
        return _load_int32(self._e, address)

    def add(
        self, sums: Sequence[ir.Value], rows: Sequence[ir.Value], columns: Sequence[ir.Value]
    ) -> list[ir.Value]:
        e, b = self._e, self._e.builder
        weights = [load_pairs(e, address) for address in columns]
        grown = []
        remaining = iter(sums)
        for row in rows:
            quad = b.load(b.bitcast(row, I32.as_pointer()))
            inputs = e.broadcast(quad, VEC_I32)
            grown += [dot_quads(e, next(remaining), inputs, each) for each in weights]
        return grown


class WordDots:
    """Signed bytes times signed words: of a step, first two inputs of 16 columns, then the other two."""

    inputs_per_step: int = 4
    weight_type: ir.Type = I8
    input_type: ir.Type = I16

    def __init__(self, e: Emitter) -> None:
        self._e = e

    def start(self, address: ir.Value) -> ir.Value:
        return _load_int32(self._e, address)

    def add(
        self, sums: Sequence[ir.Value], rows: Sequence[ir.Value], columns: Sequence[ir.Value]
    ) -> list[ir.Value]:
        e = self._e
        grown = list(sums)
        for pair in range(2):
            weights = [
                words_of_bytes(e, e.at(address, e.int64(pair * 2 * LANES))) for address in columns
            ]
            for index, row in enumerate(rows):
                inputs = pair_of_words(e, e.at(row, e.int64(2 * pair)))
                for half, each in enumerate(weights):
                    place = index * len(weights) + half
                    grown[place] = dot_words(e, grown[place], inputs, each)
        return grown


def make_sums(e: Emitter, dots: Dots | None, dtype: str) -> Sums:
    """Those of an instruction, or of one product after the other with a weight of a type."""
    match dots:
        case "pairs":
            return PairDots(e)
        case "quads":
            return QuadDots(e)
        case "words":
            return WordDots(e)
    return Fmas(e, dtype)


def _load_int32(e: Emitter, address: ir.Value) -> ir.Value:
    """16 numbers, aligned as such are."""
    numbers = e.builder.load(e.builder.bitcast(address, VEC_I32.as_pointer()))
    numbers.align = 4
    return numbers


def load_pairs(e: Emitter, address: ir.Value) -> ir.Value:
    """16 pairs of bfloat16, or 16 times four bytes, aligned."""
    pairs = e.builder.load(e.builder.bitcast(address, VEC_I32.as_pointer()))
    pairs.align = 64
    return pairs


class PanelEpilogue:
    """Emits it for one row and panel.

    With a gate, the first 16 columns of a panel are gates and the others their ups; 16 activated columns
    come out of it, and what is between the two never reaches memory.
    """

    def __init__(
        self,
        e: Emitter,
        gate: Gate | None,
        dtype: str,
        argument: Mapping[str, ir.Value],
        *,
        is_int8: bool,
    ) -> None:
        """`argument` has "bias", and for "output" and "residual" addresses and strides in elements; of whole numbers
        also "scales", of the columns, and "row_scales"."""
        self.e, self.b = e, e.builder
        self._gate = gate
        self._dtype = dtype
        self._argument = argument
        self._is_int8 = is_int8

    def finish(self, row: ir.Value, panel: ir.Value, sums: ir.Value) -> None:
        """Write a row's outputs from its sums, float32 or int32 [32] in memory."""
        e, b = self.e, self.b
        halves = []
        for offset in (0, LANES):
            place = b.add(b.mul(panel, e.int64(COLUMNS)), e.int64(offset))
            bias = e.load(e.at(self._argument["bias"], place))
            total = e.load(e.at(sums, e.int64(offset)), 64)
            if self._is_int8:
                total = self._scaled(total, row, place)
            halves.append(b.fadd(total, bias))
        if self._gate is not None:
            halves = [FUNCTIONS[self._gate.kind](e, self._gate, *halves)]
        begin = b.mul(panel, e.int64(len(halves) * LANES))
        for number, vector in enumerate(halves):
            self._write(row, b.add(begin, e.int64(number * LANES)), vector)

    def _scaled(self, total: ir.Value, row: ir.Value, place: ir.Value) -> ir.Value:
        """Floats of 16 whole numbers, times the scales of row and columns."""
        e, b = self.e, self.b
        row_scale = e.broadcast(b.load(e.at(self._argument["row_scales"], row)))
        scales = b.fmul(row_scale, e.load(e.at(self._argument["scales"], place)))
        return b.fmul(b.sitofp(b.bitcast(total, VEC_I32), VEC), scales)

    def _write(self, row: ir.Value, column: ir.Value, vector: ir.Value) -> None:
        """Add the residual, if there is one; columns beyond the last one are left out."""
        e, b = self.e, self.b
        left = b.trunc(b.sub(self._argument["num_columns"], column), I32)
        lanes = ir.Constant(VEC_I32, list(range(LANES)))
        exists = b.icmp_signed("<", lanes, e.broadcast(left, VEC_I32))
        total = self._added(vector, row, column, exists)
        store_elements(e, total, self._at("output", row, column), self._dtype, exists)

    def _added(
        self, vector: ir.Value, row: ir.Value, column: ir.Value, exists: ir.Value
    ) -> ir.Value:
        b = self.b
        before = b.block
        null = ir.Constant(ELEMENT_TYPES[self._dtype].as_pointer(), None)
        with b.if_then(b.icmp_unsigned("!=", self._argument["residual"], null)):
            address = self._at("residual", row, column)
            added = b.fadd(vector, load_elements(self.e, address, self._dtype, exists))
            adding = b.block
        total = b.phi(VEC)
        total.add_incoming(vector, before)
        total.add_incoming(added, adding)
        return total

    def _at(self, name: str, row: ir.Value, column: ir.Value) -> ir.Value:
        start = self.b.mul(row, self._argument[f"{name}_stride"])
        return self.e.at(self._argument[name], self.b.add(start, column))
