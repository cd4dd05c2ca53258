"""A weight in the panels of vectors, and how its matmuls are shared among threads."""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.parallel import run_parallel
from pagemesh.kernels.linear.int8_rows import quantise_rows
from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.packed_parts import STEP_INPUTS, FormedRows, place_panels
from pagemesh.kernels.linear.panel_kernel import (
    ARGUMENTS,
    CHUNK_ROWS,
    PanelVariant,
    compile_panels,
)
from pagemesh.kernels.linear.panel_packing import Int8Panels, pack_int8, place_words
from pagemesh.kernels.linear.panel_sums import COLUMNS, Dots
from pagemesh.kernels.linear.prepared_rows import widen, with_zeros
from pagemesh.kernels.packed_weights import place_packed

_MIN_SHARED_PRODUCTS: Final = 1 << 17
"""Multiplications from which on threads share them: below, waking the others takes as long as they save."""

_Arguments = ctypes.c_int64 * len(ARGUMENTS)


class VectorPanels:
    """`Panels` of vectors."""

    def __init__(
        self,
        weight: torch.Tensor | FormedRows | ChannelInt8,
        columns: torch.Tensor,
        bias: torch.Tensor,
        num_columns: int,
        gate: Gate | None,
        *,
        dots: Dots | None,
    ) -> None:
        """`columns` are those rows of the weight that panels have; `dots` are "quads" or "words" of a `ChannelInt8`, and
        neither of another weight."""
        self._num_columns = num_columns
        self._bias = bias
        self._dots = dots
        form = weight.form if isinstance(weight, FormedRows) else None
        numbers = weight.weight if isinstance(weight, FormedRows) else weight
        self._num_inputs = numbers.shape[1]
        self._dtype = numbers.dtype
        self._num_panels = len(columns) // COLUMNS
        name = str(self._dtype).removeprefix("torch.")
        self._function = compile_panels(PanelVariant(name, dots, gate, form))
        self._int8: Int8Panels | None = None
        if isinstance(weight, ChannelInt8):
            assert dots == "quads" or dots == "words"
            self._int8 = pack_int8(weight, columns, dots)
            self._weight = self._int8.codes
            self._num_steps = self._int8.num_steps
            return
        inputs_per_step = 2 if self._dtype == torch.bfloat16 else 1
        # Inputs that fill no step have company of zeros.
        self._num_padded = -self._num_inputs % (inputs_per_step if form is None else STEP_INPUTS)
        num_inputs = self._num_inputs + self._num_padded
        if isinstance(weight, torch.Tensor):
            self._num_steps = num_inputs // inputs_per_step
            steps = functional.pad(weight, (0, self._num_padded)) if self._num_padded else weight
            if self._dtype == torch.float16:
                halves = steps[columns].view(self._num_panels, COLUMNS, self._num_steps)
                self._weight = place_packed(halves.transpose(1, 2))
            else:
                self._weight = place_words(steps, columns, "lines")
        else:
            self._num_steps = num_inputs // 2 if dots else num_inputs
            self._weight = place_panels(weight, columns)

    def multiply(
        self, inputs: torch.Tensor, residual: torch.Tensor | None, output: torch.Tensor
    ) -> None:
        """See `Panels.multiply`."""
        inputs, row_scales = self._as_multiplied(inputs)
        int8 = self._int8
        if residual is not None and residual.stride(1) != 1:
            residual = residual.contiguous()
        num_rows = inputs.shape[0]
        num_chunks = -(-num_rows // CHUNK_ROWS)
        arguments = _Arguments(
            0,
            self._num_panels * num_chunks,
            num_chunks,
            num_rows,
            self._num_steps,
            self._num_columns,
            self._weight.data_ptr(),
            self._bias.data_ptr(),
            0 if int8 is None else int8.scales.data_ptr(),
            0 if int8 is None else int8.starts.data_ptr(),
            inputs.data_ptr(),
            inputs.stride(0),
            output.data_ptr(),
            output.stride(0),
            0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
            0 if row_scales is None else row_scales.data_ptr(),
        )
        num_products = num_rows * self._num_columns * self._num_inputs
        num_threads = torch.get_num_threads() if num_products >= _MIN_SHARED_PRODUCTS else 1
        run_parallel(self._function, arguments, num_threads)

    def _as_multiplied(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of the kernel's type, a row's elements side by side; and the scales of rows of whole numbers."""
        inputs = inputs if inputs.stride(1) == 1 else inputs.contiguous()
        if self._int8 is not None:
            assert self._dots == "quads" or self._dots == "words"
            return quantise_rows(inputs, self._dots, self._int8.input_scale)
        inputs = with_zeros(inputs, self._num_padded)
        return (inputs if self._dots else widen(inputs)), None
