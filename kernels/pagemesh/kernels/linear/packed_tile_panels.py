"""A packed weight in panels for AMX's tiles, and how its matmuls are shared among threads."""

from __future__ import annotations

import ctypes

import torch

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.parallel import run_parallel
from pagemesh.kernels.linear.packed_parts import STEP_INPUTS, FormedRows, place_panels
from pagemesh.kernels.linear.packed_tile_kernel import ARGUMENTS, compile_packed_tiles
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.linear.prepared_rows import paired, with_zeros
from pagemesh.kernels.linear.tile_items import MIN_SHARED_PRODUCTS, TileItems

_Arguments = ctypes.c_int64 * len(ARGUMENTS)


class PackedTilePanels:
    """`Panels` of tiles, of which parts are unpacked as they are needed."""

    def __init__(
        self,
        formed: FormedRows,
        columns: torch.Tensor,
        bias: torch.Tensor,
        num_columns: int,
        gate: Gate | None,
    ) -> None:
        """`columns` are those rows of the weight that panels have."""
        self._num_columns = num_columns
        num_inputs = formed.weight.shape[-1]
        self._num_padded = -num_inputs % STEP_INPUTS
        self._num_panels = len(columns) // COLUMNS
        self._num_steps = (num_inputs + self._num_padded) // STEP_INPUTS
        self._bias = bias
        self._weight = place_panels(formed, columns)
        self._function = compile_packed_tiles(gate, formed.form)

    def multiply(
        self, inputs: torch.Tensor, residual: torch.Tensor | None, output: torch.Tensor
    ) -> None:
        """See `Panels.multiply`."""
        if inputs.stride(1) != 1:
            inputs = inputs.contiguous()
        if residual is not None and residual.stride(1) != 1:
            residual = residual.contiguous()
        inputs = with_zeros(inputs, self._num_padded)
        num_rows, num_inputs = inputs.shape
        num_products = num_rows * self._num_columns * num_inputs
        num_threads = torch.get_num_threads() if num_products >= MIN_SHARED_PRODUCTS else 1
        items = TileItems(
            num_rows, num_inputs * inputs.element_size(), self._num_panels, num_threads
        )
        pairs = paired(inputs)
        arguments = _Arguments(
            *items.arguments(),
            self._num_steps,
            self._num_columns,
            self._weight.data_ptr(),
            self._bias.data_ptr(),
            pairs.data_ptr(),
            output.data_ptr(),
            output.stride(0),
            0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
        )
        run_parallel(self._function, arguments, num_threads)
