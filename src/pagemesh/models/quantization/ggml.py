"""Tensors of a GGUF file that stay in codes: of each type what it stands for is what ggml makes of it, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.gguf.blocks import PACKED
from pagemesh.kernels.linear.packed import Codebook, GroupInt, pack_halves
from pagemesh.kernels.linear.weight import Quantised
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import Entries, PackedPart, Packing


@dataclass(frozen=True, slots=True)
class Ggml:
    """Implements `Format`: each tensor says for itself what it is."""

    @classmethod
    def read(cls, config: ConfigJson) -> Ggml:
        """There is nothing to read."""
        return cls()

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        """See `Format.find`."""
        entry = entries.get(tensor)
        if entry is None or entry.dtype not in PACKED:
            return None
        part = PackedPart(tensor, shape, (entry.dtype,), is_blocks=True)
        return Packing({"blocks": part}, partial(_make, entry.dtype, shape))


def _make(
    kind: str, shape: tuple[int, ...], tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> Quantised:
    """A matrix [out, in], or a stack, of the blocks of its type, uint8 [blocks, bytes]."""
    device = tensors["blocks"].device
    parts = PACKED[kind](tensors["blocks"].cpu().numpy())
    leading = shape[:-1]

    def placed(numbers: npt.NDArray[np.generic] | None) -> torch.Tensor | None:
        if numbers is None:
            return None
        tensor = torch.from_numpy(np.ascontiguousarray(numbers)).view(*leading, -1)
        # Powers of two, which bfloat16 has as well.
        return (tensor.bfloat16() if tensor.dtype == torch.float32 else tensor).to(device)

    codes, scales = placed(parts.codes), placed(parts.scales)
    assert codes is not None and scales is not None
    group_size = shape[-1] // scales.shape[-1]
    packed = pack_halves(codes) if parts.bits == 4 else codes
    if parts.table is not None:
        return Codebook(dtype, packed, scales, parts.table, group_size)
    return GroupInt(
        dtype,
        packed,
        scales,
        parts.bits,
        group_size,
        parts.centre,
        minimums=placed(parts.minimums),
        scale_units=placed(parts.units),
        minimum_units=placed(parts.minimum_units),
    )
