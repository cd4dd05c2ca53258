"""Weights, and rows, as kernels on CUDA devices take them: what is packed stays so."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.launch import cdiv, dot_type, launch
from pagemesh.kernels.linear.packed import ChannelInt8, Codebook, GroupInt, ScaledFp8
from pagemesh.kernels.linear.rows_kernel import fp8_rows, int8_rows
from pagemesh.kernels.linear.tiles import PROMOTED
from pagemesh.kernels.linear.weight import RowStack, Weight
from pagemesh.kernels.linear.weight_kernel import Form, take_rows_kernel
from pagemesh.kernels.target import target_of

_TABLES: Final = (
    *("scales", "scale_units", "zero_points", "minimums", "minimum_units"),
    *("input_groups", "table"),
)
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_CONVERTS_E4M3: Final = 89
"""The first compute capability with an instruction for it, and with units that multiply such floats."""

_CODES_OF_ROWS: Final = ("w8a8", "fp8")
"""Which rows of activations have, too."""
_BLOCK_ROWS: Final = 16
_BLOCK_K: Final = 64
"""Numbers of a row that a program looks up. With 4 rows and 256 numbers Triton cannot lay out what is gathered from."""

_Kept = GroupInt | Codebook | ScaledFp8 | ChannelInt8
"""Kinds that stay as they are."""


class KernelWeight:
    """A matrix [out, in], or a stack of them, with what kernels need to read it."""

    def __init__(self, weight: Weight) -> None:
        """Of rows of one kind, or of kinds that are multiplied as what they stand for; what no kernel unpacks becomes
        dense."""
        kept = weight if isinstance(weight, _Kept) and _has_one_unit(weight) else None
        tensors = {"weight": weight.dense()} if kept is None else _tensors(kept)
        # A stack is one matrix of all rows; of what the rows of a matrix share there is one for each of it.
        flat = {name: tensor.flatten(0, -2).contiguous() for name, tensor in tensors.items()}
        self.shape = torch.Size((weight.shape[:-1].numel(), weight.shape[-1]))
        """Of the matrix of all rows."""
        self.dtype = weight.dtype
        self.device = weight.device
        self.num_bits = 8 * flat["weight"].nbytes // max(1, self.shape.numel())
        """Of a number, as it is read."""
        self._form = None if kept is None else _form(kept)
        self.arguments: dict[str, object] = {
            **dict.fromkeys(_TABLES),
            **flat,
            "row_size": flat["weight"].shape[-1],
            "FORM": self._form,
        }
        """By the names of kernels' parameters; rows have the rest."""
        if not self.takes_codes:
            self.arguments["row_scales"] = None
        self._input_scale = None if kept is None else _input_scale(kept)

    @property
    def takes_codes(self) -> bool:
        """Whether rows of activations become codes before they are multiplied with it."""
        return self._form is not None and self._form.codes in _CODES_OF_ROWS

    @property
    def is_unpacked(self) -> bool:
        """Whether kernels make numbers of its codes, by which rows of activations are multiplied."""
        return self._form is not None and not self.takes_codes

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """What rows stand for, of a weight that is unpacked: [T, in] of int64 [T]."""
        num_rows, num_inputs = numbers.shape[0], self.shape[1]
        output = torch.empty(num_rows, num_inputs, dtype=self.dtype, device=self.device)
        if not num_rows:
            return output
        launch(
            take_rows_kernel,
            (cdiv(num_rows, _BLOCK_ROWS), cdiv(num_inputs, _BLOCK_K)),
            {
                **{name: each for name, each in self.arguments.items() if name != "row_scales"},
                "numbers": numbers,
                "output": output,
                "num_rows": num_rows,
                "num_inputs": num_inputs,
                "IS_WHOLE": num_inputs % _BLOCK_K == 0,
                "TYPE": dot_type(self.dtype),
                "BLOCK_ROWS": _BLOCK_ROWS,
                "BLOCK_K": _BLOCK_K,
            },
            overlaps=True,
        )
        return output

    def take(self, inputs: torch.Tensor) -> KernelRows:
        """Rows [T, in] as they are multiplied with it."""
        inputs = inputs if inputs.stride(-1) == 1 else inputs.contiguous()
        if self._form is not None and self._form.codes == "w8a8":
            return KernelRows(*int8_rows(inputs, self._input_scale), torch.int32)
        if self._form is not None and self._form.codes == "fp8":
            codes, scales = fp8_rows(inputs, self._input_scale, self._form.row_group)
            return KernelRows(codes, scales, torch.float32)
        return KernelRows(inputs, None, torch.float32)


class KernelRows(NamedTuple):
    """Rows as kernels multiply them."""

    numbers: torch.Tensor
    """[T, in], a row's side by side."""

    scales: torch.Tensor | None
    """float32 [runs, T], of codes."""

    sum_dtype: torch.dtype

    @property
    def arguments(self) -> dict[str, object]:
        """By the names of kernels' parameters; the caller's to add others."""
        own: dict[str, object] = {"inputs": self.numbers, "input_stride": self.numbers.stride(0)}
        if self.scales is not None:
            own["row_scales"] = self.scales
        return own


def takes_codes(weight: Weight) -> bool:
    """Whether rows become codes before they are multiplied with it, on its device."""
    if isinstance(weight, RowStack):
        return any(map(takes_codes, weight.parts))
    return isinstance(weight, ChannelInt8) or (
        isinstance(weight, ScaledFp8) and _takes_fp8_rows(weight)
    )


def _takes_fp8_rows(weight: ScaledFp8) -> bool:
    """Whether it is made for that, and the device has units for it that add up whole runs of inputs."""
    if weight.row_group is None or target_of(weight.device).capability < _CONVERTS_E4M3:
        return False
    runs, row_runs = (_in_a_row(weight, size) for size in (weight.group_size, weight.row_group))
    return not (runs % PROMOTED or row_runs % PROMOTED or row_runs & (row_runs - 1))


def _in_a_row(weight: _Kept, size: int) -> int:
    """Inputs that share a number, 0 where all of a row do."""
    return size if size < weight.shape[-1] else 0


def _tensors(weight: _Kept) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor | None] = {"scales": weight.scales}
    if isinstance(weight, ScaledFp8):
        converts = target_of(weight.device).capability >= _CONVERTS_E4M3
        found["weight"] = weight.numbers if converts else weight.numbers.view(torch.uint8)
    elif isinstance(weight, Codebook):
        found["weight"] = weight.codes
        if not _is_e2m1(weight.table):
            found["table"] = torch.tensor([weight.table], device=weight.device)
        if weight.scales.dtype == torch.float8_e8m0fnu:
            found["scales"] = weight.scales.view(torch.uint8)
    elif isinstance(weight, ChannelInt8):
        found["weight"] = weight.codes
    else:
        found["weight"] = weight.codes
        for name in ("scale_units", "zero_points", "minimums", "minimum_units", "input_groups"):
            found[name] = getattr(weight, name)
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _form(weight: _Kept) -> Form:
    if isinstance(weight, ChannelInt8):
        return Form("w8a8", 0, 0, 0)
    num_inputs = weight.shape[-1]
    group = _in_a_row(weight, weight.group_size)
    if isinstance(weight, ScaledFp8):
        if weight.row_group is not None and _takes_fp8_rows(weight):
            return Form("fp8", 0, group, 0, _in_a_row(weight, weight.row_group))
        return Form("e4m3", 0, group, 0)
    if isinstance(weight, Codebook):
        return Form("e2m1" if _is_e2m1(weight.table) else "table", 0, group, 0)
    units = weight.scale_units if weight.scale_units is not None else weight.minimum_units
    unit = 0 if units is None else num_inputs // units.shape[-1]
    return Form("int4" if weight.bits == 4 else "int8", weight.centre, group, unit)


def _input_scale(weight: _Kept) -> torch.Tensor | None:
    """float32 [1, ...], of all rows of activations, if they have one."""
    if isinstance(weight, ScaledFp8):
        return None if weight.input_scales is None else weight.input_scales.amax()
    if not isinstance(weight, ChannelInt8):
        return None
    if weight.input_scale is None or weight.input_scale.numel() == 1:
        return weight.input_scale
    raise ConfigError(
        "the checkpoint has an input_scale for each expert (static W8A8), which is computed on CPUs alone: serve it"
        " there, or take a checkpoint whose activations are quantised dynamically"
    )


def _is_e2m1(table: tuple[float, ...]) -> bool:
    return table == (*_E2M1, *(-number for number in _E2M1))


def _has_one_unit(weight: _Kept) -> bool:
    """Whether units of scales and of minimums are for runs of the same length, where there are both."""
    if not isinstance(weight, GroupInt) or weight.scale_units is None:
        return True
    units = weight.minimum_units
    return units is None or units.shape == weight.scale_units.shape
