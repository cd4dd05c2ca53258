"""What happens to the sums of a panel: bias, activation or residual, one rounding."""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from pagemesh.kernels.gated_activation.cpu import FUNCTIONS
from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_elements, store_elements
from pagemesh.kernels.jit.emit import I32, LANES, VEC, VEC_I32, Emitter
from pagemesh.kernels.linear.panel_sums import COLUMNS


class PanelEpilogue:
    """Emits it for one row and panel.

    With a gate, the first 16 columns of a panel are gates and the others their ups; 16 activated columns
    come out of it, and what is between the two never reaches memory.
    """

    def __init__(
        self, e: Emitter, gate: Gate | None, dtype: str, argument: Mapping[str, ir.Value]
    ) -> None:
        """`argument` has "bias", and for "output" and "residual" addresses and strides in elements."""
        self.e, self.b = e, e.builder
        self._gate = gate
        self._dtype = dtype
        self._argument = argument

    def finish(self, row: ir.Value, panel: ir.Value, sums: ir.Value) -> None:
        """Write a row's outputs from its sums, float32 [32] in memory."""
        e, b = self.e, self.b
        halves = []
        for offset in (0, LANES):
            place = b.add(b.mul(panel, e.int64(COLUMNS)), e.int64(offset))
            bias = e.load(e.at(self._argument["bias"], place))
            halves.append(b.fadd(e.load(e.at(sums, e.int64(offset)), 64), bias))
        if self._gate is not None:
            halves = [FUNCTIONS[self._gate.kind](e, self._gate, *halves)]
        begin = b.mul(panel, e.int64(len(halves) * LANES))
        for number, vector in enumerate(halves):
            self._write(row, b.add(begin, e.int64(number * LANES)), vector)

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
