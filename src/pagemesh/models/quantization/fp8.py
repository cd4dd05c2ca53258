"""Floats of 8 bits with a scale for a matrix, for each row, or for blocks: `quant_method` `fp8` and `fbgemm_fp8`.

`weight` float8_e4m3fn [out, in], and beside it `weight_scale_inv`, of blocks, as DeepSeek (https://arxiv.org/abs/2412.19437)
and transformers write it, or `weight_scale`, as vLLM's tools and FBGEMM do: what numbers are multiplied with, whatever
the name. Activations stay as they are; scales for those (`input_scale`) are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from pagemesh.kernels.linear.packed import ScaledFp8
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import FLOATS, Entries, PackedPart, Packing, module_of

_SCALES: Final = ("weight_scale_inv", "weight_scale")
_UNREAD: Final = ("input_scale", "activation_scale", "input_scale_ub")


@dataclass(frozen=True, slots=True)
class Fp8:
    """See `Format`. A matrix is quantised where the checkpoint has it in 8 bits."""

    block: tuple[int, int] | None
    """Rows and inputs that share a scale."""

    @classmethod
    def read(cls, config: ConfigJson) -> Fp8:
        """ConfigError for floats of another kind."""
        config.require("fmt", ("e4m3",))
        return cls(read_block(config, "weight_block_size"))

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        entry = entries.get(tensor)
        if len(shape) != 2 or (entry is not None and entry.dtype in FLOATS):
            return None
        module = module_of(tensor)
        names = [f"{module}.{name}" for name in _SCALES]
        scale = next((name for name in names if name in entries), names[0])
        return fp8_packing(tensor, shape, scale, self.block, entries)


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
) -> Packing:
    """A matrix in 8 bits, `scale` being the name of its scales' tensor: of blocks if there are blocks, else of rows
    or of the whole matrix, as the tensor's shape says."""
    num_outputs, num_inputs = shape
    there = entries.get(scale)
    scale_shape: tuple[int, ...]
    if block is not None:
        scale_shape = (-(-num_outputs // block[0]), -(-num_inputs // block[1]))
    else:
        scale_shape = (num_outputs, 1)
        if there is not None and there.shape in ((), (1,), (1, 1), (num_outputs,)):
            scale_shape = there.shape
    parts = {
        "numbers": PackedPart(tensor, (num_outputs, num_inputs), ("F8_E4M3",)),
        "scales": PackedPart(scale, scale_shape, FLOATS),
    }
    unread = (f"{module_of(tensor)}.{name}" for name in _UNREAD)

    def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> ScaledFp8:
        scales = tensors["scales"].float()
        if block is not None:
            scales = scales.repeat_interleave(block[0], 0)[:num_outputs]
        else:
            scales = scales.reshape(-1, 1).expand(num_outputs, 1)
        group_size = num_inputs if block is None else block[1]
        return ScaledFp8(dtype, tensors["numbers"], scales.contiguous(), group_size)

    return Packing(parts, make, tuple(unread))
