"""A weight of whole numbers in panels, in the order in which a processor multiplies them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import torch
from torch.nn import functional

from pagemesh.kernels.jit.byte_dots import has_quad_dots
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa
from pagemesh.kernels.jit.emit import LANES
from pagemesh.kernels.jit.tile_registers import multiplies_int8
from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.packed_weights import place_packed

Int8Order = Literal["tiles", "quads", "words"]
"""By what multiplies them. For words, codes of rows are words."""

STEP_INPUTS: Final[Mapping[Int8Order, int]] = {"tiles": 64, "quads": 4, "words": 4}
"""Inputs are filled up to a multiple of these."""

ROW_EXCESS: Final = 128
"""For quads, bytes of rows are as much more than their codes."""


def int8_order() -> Int8Order:
    """The fastest of the class's processors that this one has."""
    if current_isa() == CpuIsa.AMX and multiplies_int8():
        return "tiles"
    return "quads" if has_quad_dots() else "words"


class Int8Panels(NamedTuple):
    """A weight as kernels read it, its rows filling panels."""

    codes: torch.Tensor
    """int8 [panels, steps, 32 · inputs of a step], by its order."""

    scales: torch.Tensor
    """float32 [panels · 32]."""

    starts: torch.Tensor
    """int32 [panels · 32]: what sums begin with."""

    input_scale: torch.Tensor | None
    """float32 [1]."""


def pack_int8(weight: ChannelInt8, order: Int8Order) -> Int8Panels:
    """Of a weight [panels · 32, in]."""
    num_rows, num_inputs = weight.shape
    assert num_inputs <= weight.most_inputs, "formats refuse longer rows"
    step = STEP_INPUTS[order]
    codes = functional.pad(weight.codes, (0, -num_inputs % step))
    num_steps = codes.shape[1] // step
    if order == "quads":
        pieces = codes.view(-1, COLUMNS, num_steps, step).transpose(1, 2)
    else:
        # By halves of the columns, inputs that are added at once side by side.
        together = 4 if order == "tiles" else 2
        halves = codes.view(-1, 2, LANES, num_steps, step // together, together)
        pieces = halves.permute(0, 3, 1, 4, 2, 5)
    panels = pieces.reshape(num_rows // COLUMNS, num_steps, COLUMNS * step)
    starts = torch.zeros(num_rows, dtype=torch.int32)
    if order == "quads":
        starts = weight.codes.sum(1, dtype=torch.int32) * -ROW_EXCESS
    scale = weight.input_scale
    return Int8Panels(
        place_packed(panels.contiguous()),
        weight.scales.flatten(),
        starts,
        None if scale is None else scale.flatten(),
    )
