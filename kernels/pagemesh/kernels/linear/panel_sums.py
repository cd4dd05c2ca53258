"""How inputs are multiplied and added to sums: the part of a panel kernel that settles its bits.

`PairDots` adds the products of two inputs at once, as AVX512-BF16 does; `Fmas` adds one after the other,
each product and sum rounded once, which every processor does alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from llvmlite import ir

from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_elements
from pagemesh.kernels.jit.emit import F32, I16, I32, LANES, VEC_I32, Emitter
from pagemesh.kernels.jit.pair_dots import dot_pairs, half_of_pairs

COLUMNS: Final = 2 * LANES
"""Of a panel: two vectors, side by side."""


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

    def add(
        self, sums: Sequence[ir.Value], rows: Sequence[ir.Value], columns: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Sums with a step more: those of the first row with each vector of columns, of the second …

        `rows` are addresses of a step's inputs, `columns` of its weights for 16 columns.
        """


class PairDots:
    """bfloat16 times bfloat16, in pairs."""

    inputs_per_step = 2
    weight_type = input_type = I16

    def __init__(self, e: Emitter) -> None:
        self._e = e

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

    input_type = F32

    def __init__(self, e: Emitter, dtype: str) -> None:
        self._e = e
        self._dtype = dtype
        self.inputs_per_step = 2 if dtype == "bfloat16" else 1
        self.weight_type = ELEMENT_TYPES[dtype]

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


def load_pairs(e: Emitter, address: ir.Value) -> ir.Value:
    """16 pairs of bfloat16, aligned."""
    pairs = e.builder.load(e.builder.bitcast(address, VEC_I32.as_pointer()))
    pairs.align = 64
    return pairs
