"""Matmuls on CPUs: weights in panels, of the same bits in any number of rows on every processor of a class."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, Protocol

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa
from pagemesh.kernels.jit.emit import LANES
from pagemesh.kernels.jit.parallel import run_parallel
from pagemesh.kernels.linear.interface import (
    GatedLinear,
    Linear,
    PlainLinear,
    StepwiseGatedLinear,
    check_weight,
)
from pagemesh.kernels.linear.packed import Packed
from pagemesh.kernels.linear.packed_parts import STEP_INPUTS, form_of, pack
from pagemesh.kernels.linear.panel_kernel import (
    ARGUMENTS,
    CHUNK_ROWS,
    PanelVariant,
    compile_panels,
    widen,
    with_zeros,
)
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.linear.tile_panels import TilePanels
from pagemesh.kernels.packed_weights import place_packed

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights."""

_MIN_SHARED_PRODUCTS: Final = 1 << 17
"""Multiplications from which on threads share them: below, waking the others takes as long as they save."""

_Arguments = ctypes.c_int64 * len(ARGUMENTS)


def make_cpu_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """See `make_linear`."""
    if weight.dtype in DTYPES:
        return PanelLinear(weight, bias)
    return PlainLinear(weight, bias)


def make_cpu_gated_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, gate: Gate
) -> GatedLinear:
    """See `make_gated_linear`."""
    if weight.dtype in DTYPES:
        return GatedPanelLinear(weight, bias, gate)
    activate = make_gated_activation(gate, weight.device)
    return StepwiseGatedLinear(make_cpu_linear(weight, bias), activate)


class PanelLinear:
    """`Linear` over a weight in panels."""

    def __init__(self, weight: torch.Tensor | Packed, bias: torch.Tensor | None) -> None:
        if isinstance(weight, torch.Tensor):
            check_weight(weight, bias, DTYPES, is_gated=False)
        num_rows = weight.shape[0]
        self._panels = make_panels(
            _in_order(weight, _padded), _padded(_bias(num_rows, bias)), num_rows, None
        )

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._panels.multiply(inputs, None)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return self._panels.multiply(inputs, residual)


class GatedPanelLinear:
    """`GatedLinear` over a weight in panels of 16 gates and their ups."""

    def __init__(
        self, weight: torch.Tensor | Packed, bias: torch.Tensor | None, gate: Gate
    ) -> None:
        if isinstance(weight, torch.Tensor):
            check_weight(weight, bias, DTYPES, is_gated=True)
        num_rows = weight.shape[0]
        self._panels = make_panels(
            _in_order(weight, _interleaved),
            _interleaved(_bias(num_rows, bias)),
            num_rows // 2,
            gate,
        )

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._panels.multiply(inputs, None)


class Panels(Protocol):
    """A packed weight and how rows are multiplied with it."""

    def multiply(self, inputs: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Of rows [T, in] and, where it is added, a residual [T, columns]: [T, columns]."""
        ...


def make_panels(
    weight: torch.Tensor | Packed, bias: torch.Tensor, num_columns: int, gate: Gate | None
) -> Panels:
    """The best for this processor's class; `weight` is [panels · 32, in], `bias` float32 [panels · 32]."""
    if weight.dtype == torch.bfloat16 and current_isa() == CpuIsa.AMX:
        return TilePanels(weight, bias, num_columns, gate)
    return _VectorPanels(weight, bias, num_columns, gate)


class _VectorPanels:
    def __init__(
        self, weight: torch.Tensor | Packed, bias: torch.Tensor, num_columns: int, gate: Gate | None
    ) -> None:
        self._num_columns = num_columns
        self._num_inputs = weight.shape[1]
        self._dtype = weight.dtype
        is_paired = weight.dtype == torch.bfloat16
        self._bias = bias
        self._uses_dots = is_paired and current_isa().has_pair_dots
        name = str(weight.dtype).removeprefix("torch.")
        self._num_panels = weight.shape[0] // COLUMNS
        if isinstance(weight, Packed):
            form = form_of(weight, "pairs" if self._uses_dots else "singles")
            self._num_padded = -self._num_inputs % STEP_INPUTS
            num_inputs = self._num_inputs + self._num_padded
            self._num_steps = num_inputs // 2 if self._uses_dots else num_inputs
            assert form is not None
            self._weight = place_packed(pack(weight, form))
            self._function = compile_panels(PanelVariant(name, self._uses_dots, gate, form))
            return
        inputs_per_step = 2 if is_paired else 1
        # An odd last input has a partner of zeros.
        self._num_padded = -self._num_inputs % inputs_per_step
        weight = functional.pad(weight, (0, self._num_padded)) if self._num_padded else weight
        self._num_steps = weight.shape[1] // inputs_per_step
        steps = weight.view(self._num_panels, COLUMNS, self._num_steps, inputs_per_step)
        self._weight = place_packed(steps.transpose(1, 2).contiguous())
        self._function = compile_panels(PanelVariant(name, self._uses_dots, gate))

    def multiply(self, inputs: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        inputs = self._as_multiplied(inputs)
        if residual is not None and residual.stride(1) != 1:
            residual = residual.contiguous()
        num_rows = inputs.shape[0]
        output = torch.empty(num_rows, self._num_columns, dtype=self._dtype)
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
            inputs.data_ptr(),
            inputs.stride(0),
            output.data_ptr(),
            self._num_columns,
            0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
        )
        num_products = num_rows * self._num_columns * self._num_inputs
        num_threads = torch.get_num_threads() if num_products >= _MIN_SHARED_PRODUCTS else 1
        run_parallel(self._function, arguments, num_threads)
        return output

    def _as_multiplied(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the kernel's type, a row's elements side by side."""
        inputs = inputs if inputs.stride(1) == 1 else inputs.contiguous()
        inputs = with_zeros(inputs, self._num_padded)
        return inputs if self._uses_dots else widen(inputs)


def _in_order(
    weight: torch.Tensor | Packed, arrange: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor | Packed:
    """A weight's rows as `arrange` puts them; what fills panels up is of no matter."""
    if isinstance(weight, torch.Tensor):
        return arrange(weight)
    return weight.take_rows(arrange(torch.arange(weight.shape[0])))


def _bias(num_rows: int, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros(num_rows) if bias is None else bias.float()


def _padded(rows: torch.Tensor, multiple: int = COLUMNS) -> torch.Tensor:
    """Rows of a weight or a bias, filled up with zeros to whole panels."""
    num_missing = -len(rows) % multiple
    if not num_missing:
        return rows
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, num_missing))


def _interleaved(rows: torch.Tensor) -> torch.Tensor:
    """From gates before ups to 16 gates, their 16 ups, and so on."""
    gates, ups = (_padded(half, LANES) for half in rows.chunk(2))
    pieces = torch.stack([gates, ups]).view(2, -1, LANES, *rows.shape[1:])
    return pieces.transpose(0, 1).flatten(0, 2)
