"""Small floats with shared scales: of 8 bits, `quant_method` `fp8` and `fbgemm_fp8`, and of 4 bits, `mxfp4`.

FP8 has a scale for a matrix, for each row, or for blocks: `weight` float8_e4m3fn [out, in], and beside it
`weight_scale_inv`, of blocks, as DeepSeek (https://arxiv.org/abs/2412.19437) and transformers write it, or `weight_scale`,
as vLLM's tools and FBGEMM do: what numbers are multiplied with, whatever the name. Activations become such floats where
there are units for them: with a scale for each row, or where weights have blocks for as many of its inputs; or, where
`activation_scheme` is static, with `input_scale`, or `activation_scale`, for all rows.

MXFP4 (OCP Microscaling Formats 1.0,
https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf) is that of GPT-OSS: the stacked
experts alone, 32 inputs to a scale, which is a power of two. `…_blocks` uint8 [experts, out, in / 32, 16] and `…_scales`
uint8 [experts, out, in / 32], with outputs before inputs, where the same checkpoint in bfloat16 has them the other way
round. Gates and ups alternate in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch

from pagemesh.kernels.linear.packed import Codebook, ScaledFp8
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import (
    FLOATS,
    Entries,
    PackedPart,
    Packing,
    check_divides,
    check_input_scale,
    input_scale_part,
    module_of,
    scale_checks,
)
from pagemesh.models.tensor_files import TensorEntry

_SCALES: Final = ("weight_scale_inv", "weight_scale")
_INPUT_SCALES: Final = ("input_scale", "activation_scale")
_UNREAD: Final = (*_INPUT_SCALES, "input_scale_ub")

Fp8Rows: TypeAlias = Literal["kept", "rows", "static"] | int
"""What becomes of rows of activations: nothing; codes with a scale for each row, with one for all, or with one for so
many inputs."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """See `Format`. A matrix is quantised where the checkpoint has it in 8 bits."""

    block: tuple[int, int] | None
    """Rows and inputs that share a scale."""

    rows: Fp8Rows

    @classmethod
    def read(cls, config: ConfigJson) -> Fp8:
        """ConfigError for floats of another kind."""
        config.require("fmt", ("e4m3",))
        config.require("activation_scheme", ("dynamic", "static"))
        block = read_block(config, "weight_block_size")
        if config.get("activation_scheme") == "static":
            return cls(block, "static")
        return cls(block, "rows" if block is None else block[1])

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        entry = entries.get(tensor)
        if len(shape) != 2 or (entry is not None and entry.dtype in FLOATS):
            return None
        module = module_of(tensor)
        names = [f"{module}.{name}" for name in _SCALES]
        scale = next((name for name in names if name in entries), names[0])
        return fp8_packing(tensor, shape, scale, self.block, entries, self.rows)


def read_block(config: ConfigJson, key: str) -> tuple[int, int] | None:
    """Rows and inputs of a block; None when absent. ConfigError for others than pairs of positive numbers."""
    sizes = config.get(key)
    if sizes is None:
        return None
    if (
        not isinstance(sizes, list)
        or len(sizes) != 2
        or not all(type(size) is int and size > 0 for size in sizes)
    ):
        raise config.bad(key, "a list of two positive integers")
    return sizes[0], sizes[1]


def fp8_packing(
    tensor: str,
    shape: tuple[int, ...],
    scale: str,
    block: tuple[int, int] | None,
    entries: Entries,
    rows: Fp8Rows,
) -> Packing:
    """A matrix in 8 bits, `scale` being the name of its scales' tensor: of blocks if there are blocks, else of rows
    or of the whole matrix, as the tensor's shape says. `rows` are those of activations."""
    num_outputs, num_inputs = shape
    parts = {
        "numbers": PackedPart(tensor, (num_outputs, num_inputs), ("F8_E4M3",)),
        "scales": PackedPart(scale, _scale_shape(shape, block, entries.get(scale)), FLOATS),
    }
    checks = scale_checks(parts["scales"])
    unread = [f"{module_of(tensor)}.{name}" for name in _UNREAD]
    input_scale = next((name for name in unread if name in entries), unread[0])
    if rows == "static":
        parts["input_scale"] = input_scale_part(input_scale, entries)
        checks["input_scale"] = check_input_scale
    row_group = None
    if rows != "kept":
        row_group = min(rows, num_inputs) if isinstance(rows, int) else num_inputs

    def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> ScaledFp8:
        scales = tensors["scales"].float()
        if block is not None:
            scales = scales.repeat_interleave(min(block[0], num_outputs), 0)[:num_outputs]
        else:
            scales = scales.reshape(-1, 1).expand(num_outputs, 1)
        group_size = num_inputs if block is None else min(block[1], num_inputs)
        given = tensors.get("input_scale")
        return ScaledFp8(
            dtype,
            tensors["numbers"],
            scales.contiguous(),
            group_size,
            row_group,
            None if given is None else given.float().view(1, 1).repeat(num_outputs, 1),
        )

    return Packing(parts, make, checks, tuple(unread))


def _scale_shape(
    shape: tuple[int, ...], block: tuple[int, int] | None, there: TensorEntry | None
) -> tuple[int, ...]:
    num_outputs, num_inputs = shape
    if block is not None:
        return -(-num_outputs // block[0]), -(-num_inputs // block[1])
    if there is not None and there.shape in ((), (1,), (1, 1), (num_outputs,)):
        return there.shape
    return num_outputs, 1


_GROUP: Final = 32
_POSITIVE: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TABLE: Final = (*_POSITIVE, *(-number for number in _POSITIVE))
"""Of floats with 2 bits of exponent and 1 of mantissa (e2m1)."""


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """See `Format`. Experts are quantised where the checkpoint has no floats of them; matrices that are not stacked
    never are."""

    where: str
    """The settings' place, for messages."""

    @classmethod
    def read(cls, config: ConfigJson) -> Mxfp4:
        """Nothing is left open: `modules_to_not_convert` names what has floats."""
        return cls(config.where)

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        if tensor in entries or len(shape) != 3:
            return None
        num_experts, num_inputs, num_outputs = shape
        check_divides(_GROUP, num_inputs, tensor, self.where)
        groups = (num_experts, num_outputs, num_inputs // _GROUP)
        parts = {
            "codes": PackedPart(f"{tensor}_blocks", (*groups, _GROUP // 2), ("U8",)),
            "scales": PackedPart(f"{tensor}_scales", groups, ("U8", "F8_E8M0")),
        }
        return Packing(parts, _make_mxfp4, rows=2)


def _make_mxfp4(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Codebook:
    # Exponents plus 127 (e8m0): they are kept as they are, at a byte for 32 numbers.
    scales = tensors["scales"].view(torch.float8_e8m0fnu)
    return Codebook(
        dtype=dtype,
        codes=tensors["codes"].flatten(-2),
        scales=scales,
        table=TABLE,
        group_size=_GROUP,
    )
