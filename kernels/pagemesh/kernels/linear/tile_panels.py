"""A weight of bfloat16, or of whole numbers, in the panels of AMX's tiles, and how its matmuls are shared among
threads."""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.parallel import run_parallel
from pagemesh.kernels.linear.int8_rows import quantise_rows
from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.packed_parts import STEP_INPUTS
from pagemesh.kernels.linear.panel_packing import STEP_INPUTS as INT8_STEP_INPUTS
from pagemesh.kernels.linear.panel_packing import Int8Panels, pack_int8, place_words
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.linear.prepared_rows import with_zeros
from pagemesh.kernels.linear.tile_items import BLOCK_ROWS, MIN_SHARED_PRODUCTS, TileItems
from pagemesh.kernels.linear.tile_kernel import ARGUMENTS, TileVariant, compile_tiles

_PART_STEPS: Final = 12
"""Steps of a panel (24 KiB) that stay in the first-level cache while a chunk's rows pass."""

_Arguments = ctypes.c_int64 * len(ARGUMENTS)


class TilePanels:
    """`Panels` of tiles."""

    def __init__(
        self,
        weight: torch.Tensor | ChannelInt8,
        columns: torch.Tensor,
        bias: torch.Tensor,
        num_columns: int,
        gate: Gate | None,
    ) -> None:
        """`columns` are those rows of the weight that panels have."""
        self._num_columns = num_columns
        num_inputs = weight.shape[1]
        self._int8: Int8Panels | None = None
        step_inputs = STEP_INPUTS
        if isinstance(weight, ChannelInt8):
            step_inputs = INT8_STEP_INPUTS["tiles"]
            self._int8 = pack_int8(weight, columns, "tiles")
        # Inputs that fill no step have company of zeros.
        self._num_padded = -num_inputs % step_inputs
        self._num_panels = len(columns) // COLUMNS
        self._num_steps = (num_inputs + self._num_padded) // step_inputs
        self._bias = bias
        if isinstance(weight, torch.Tensor):
            padded = functional.pad(weight, (0, self._num_padded)) if self._num_padded else weight
            self._weight = place_words(padded, columns, "tiles")
        else:
            assert self._int8 is not None
            self._weight = self._int8.codes
        dtype = str(weight.dtype).removeprefix("torch.")
        self._function = compile_tiles(TileVariant(gate, dtype, self._int8 is not None))

    def multiply(
        self, inputs: torch.Tensor, residual: torch.Tensor | None, output: torch.Tensor
    ) -> None:
        """See `Panels.multiply`."""
        if inputs.stride(1) != 1:
            inputs = inputs.contiguous()
        int8, row_scales = self._int8, None
        if int8 is None:
            inputs = with_zeros(inputs, self._num_padded)
        else:
            inputs, row_scales = quantise_rows(inputs, "tiles", int8.input_scale)
        if residual is not None and residual.stride(1) != 1:
            residual = residual.contiguous()
        num_rows, num_inputs = inputs.shape
        num_products = num_rows * self._num_columns * num_inputs
        num_threads = torch.get_num_threads() if num_products >= MIN_SHARED_PRODUCTS else 1
        row_bytes = num_inputs * inputs.element_size()
        items = TileItems(num_rows, row_bytes, self._num_panels, num_threads)
        arguments = _Arguments(
            *items.arguments(),
            self._num_steps,
            _PART_STEPS if num_rows > BLOCK_ROWS else self._num_steps,
            self._num_columns,
            self._weight.data_ptr(),
            self._bias.data_ptr(),
            0 if int8 is None else int8.scales.data_ptr(),
            inputs.data_ptr(),
            inputs.stride(0) * inputs.element_size(),
            output.data_ptr(),
            output.stride(0),
            0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
            0 if row_scales is None else row_scales.data_ptr(),
        )
        run_parallel(self._function, arguments, num_threads)
