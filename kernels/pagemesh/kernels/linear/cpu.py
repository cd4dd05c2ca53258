"""Matmuls on CPUs: weights in panels, of the same bits in any number of rows on every processor of a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa
from pagemesh.kernels.jit.emit import LANES
from pagemesh.kernels.linear.interface import (
    GatedLinear,
    Linear,
    PlainLinear,
    StepwiseGatedLinear,
    check_weight,
)
from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.packed_parts import FormedRows, form_of
from pagemesh.kernels.linear.packed_tile_panels import PackedTilePanels
from pagemesh.kernels.linear.panel_packing import int8_order
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.linear.tile_panels import TilePanels
from pagemesh.kernels.linear.vector_panels import VectorPanels
from pagemesh.kernels.linear.weight import Dense, Plain, RowStack, Weight, takes_int8_rows

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights."""


def make_cpu_linear(weight: Weight, bias: torch.Tensor | None) -> Linear:
    """See `make_linear`."""
    if weight.dtype in DTYPES:
        return PanelLinear(weight, bias)
    return PlainLinear(weight.dense(), bias)


def make_cpu_gated_linear(weight: Weight, bias: torch.Tensor | None, gate: Gate) -> GatedLinear:
    """See `make_gated_linear`."""
    if isinstance(weight, RowStack) and takes_int8_rows(weight):
        # Parts whose products are not those of one dense weight.
        activate = make_gated_activation(gate, weight.device)
        return StepwiseGatedLinear(make_cpu_linear(weight, bias), activate)
    if weight.dtype in DTYPES:
        # Gates and ups that are kept otherwise do not fit one panel.
        plain = Dense(weight.dense()) if isinstance(weight, RowStack) else weight
        return GatedPanelLinear(plain, bias, gate)
    activate = make_gated_activation(gate, weight.device)
    return StepwiseGatedLinear(make_cpu_linear(weight, bias), activate)


class PanelLinear:
    """`Linear` over a weight in panels, or several of them side by side."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None) -> None:
        check_weight(weight, bias, DTYPES, is_gated=False)
        self._num_columns = weight.shape[0]
        self._dtype = weight.dtype
        self._parts: list[tuple[Panels, int, int]] = []
        begin = 0
        for part in weight.parts if isinstance(weight, RowStack) else (weight,):
            end = begin + part.shape[0]
            own = _bias(part.shape[0], None if bias is None else bias[begin:end])
            panels = make_panels(part, _padded, own, part.shape[0], None)
            self._parts.append((panels, begin, end))
            begin = end

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._multiply(inputs, None)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return self._multiply(inputs, residual)

    def _multiply(self, inputs: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        output = torch.empty(len(inputs), self._num_columns, dtype=self._dtype)
        if len(self._parts) == 1:
            self._parts[0][0].multiply(inputs, residual, output)
            return output
        for panels, begin, end in self._parts:
            added = None if residual is None else residual[:, begin:end]
            panels.multiply(inputs, added, output[:, begin:end])
        return output


class GatedPanelLinear:
    """`GatedLinear` over a weight in panels of 16 gates and their ups."""

    def __init__(self, weight: Plain, bias: torch.Tensor | None, gate: Gate) -> None:
        check_weight(weight, bias, DTYPES, is_gated=True)
        num_rows = weight.shape[0]
        self._num_columns = num_rows // 2
        self._dtype = weight.dtype
        own = _bias(num_rows, bias)
        self._panels = make_panels(weight, _interleaved, own, self._num_columns, gate)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        output = torch.empty(len(inputs), self._num_columns, dtype=self._dtype)
        self._panels.multiply(inputs, None, output)
        return output


class Panels(Protocol):
    """A packed weight and how rows are multiplied with it."""

    def multiply(
        self, inputs: torch.Tensor, residual: torch.Tensor | None, output: torch.Tensor
    ) -> None:
        """Of rows [T, in] and, where it is added, a residual [T, columns] into an output [T, columns], a row's
        columns side by side."""
        ...


def make_panels(
    weight: Plain,
    arrange: Callable[[torch.Tensor], torch.Tensor],
    bias: torch.Tensor,
    num_columns: int,
    gate: Gate | None,
) -> Panels:
    """The best for this processor's class of a weight [out, in] and its bias, float32 [out], whose rows `arrange` puts
    in the order of panels; what fills these up is of no matter."""
    bias, isa = arrange(bias), current_isa()
    columns = arrange(torch.arange(weight.shape[0]))
    uses_dots = weight.dtype == torch.bfloat16 and isa.has_pair_dots
    uses_tiles = uses_dots and isa == CpuIsa.AMX
    dots: Literal["pairs"] | None = "pairs" if uses_dots else None
    if isinstance(weight, ChannelInt8):
        order = int8_order()
        if order == "tiles":
            return TilePanels(weight, columns, bias, num_columns, gate)
        return VectorPanels(weight, columns, bias, num_columns, gate, dots=order)
    if not isinstance(weight, Dense):
        form = form_of(weight, "columns" if uses_tiles else dots or "singles")
        if form is not None:
            formed = FormedRows(weight, form)
            if uses_tiles:
                return PackedTilePanels(formed, columns, bias, num_columns, gate)
            return VectorPanels(formed, columns, bias, num_columns, gate, dots=dots)
    dense = weight.dense()
    if uses_tiles:
        return TilePanels(dense, columns, bias, num_columns, gate)
    return VectorPanels(dense, columns, bias, num_columns, gate, dots=dots)


def _bias(num_rows: int, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros(num_rows) if bias is None else bias.float()


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """Rows of a weight or a bias, filled up with zeros to whole panels."""
    return _filled(rows, 0, COLUMNS)


def _interleaved(rows: torch.Tensor) -> torch.Tensor:
    """From gates before ups to 16 gates, their 16 ups, and so on."""
    halves = _filled(rows.reshape(2, -1, *rows.shape[1:]), 1, LANES)
    return halves.reshape(2, -1, LANES, *rows.shape[1:]).transpose(0, 1).flatten(0, 2)


def _filled(rows: torch.Tensor, dim: int, multiple: int) -> torch.Tensor:
    """With zeros behind the last of a dimension, up to a multiple; itself where nothing is missing."""
    num_missing = -rows.shape[dim] % multiple
    if not num_missing:
        return rows
    return functional.pad(rows, (0, 0) * (rows.dim() - dim - 1) + (0, num_missing))
