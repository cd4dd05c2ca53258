"""Tensors of a GGUF file that stay in codes: of each type what it stands for is what ggml makes of it, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.gguf.blocks import PACKED, BlockParts, Nibbles, SignedBytes
from pagemesh.kernels.linear.packed import Codebook, GroupInt, pack_halves
from pagemesh.kernels.linear.panel_packing import lift_bytes, pair_nibbles
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
        part = PackedPart(tensor, shape, (entry.dtype,), is_blocks=True, is_only_read=True)
        return Packing({"blocks": part}, partial(_make, entry.dtype, shape))


def _make(
    kind: str, shape: tuple[int, ...], tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> Quantised:
    """A matrix [out, in], or a stack, of the blocks of its type, uint8 [blocks, bytes]."""
    device = tensors["blocks"].device
    parts = PACKED[kind](tensors["blocks"].cpu().numpy())
    leading = shape[:-1]

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(*leading, -1).to(device)

    def numbers(found: npt.NDArray[np.generic] | None) -> torch.Tensor | None:
        if found is None:
            return None
        # Of its own: what is a view of one block is one of the file.
        tensor = torch.from_numpy(np.require(found, requirements=("C", "O")))
        # Powers of two, which bfloat16 has as well.
        return placed(tensor.bfloat16() if tensor.dtype == torch.float32 else tensor)

    scales = numbers(parts.scales)
    assert scales is not None
    group_size = shape[-1] // scales.shape[-1]
    packed = placed(_packed(parts))
    if parts.table is not None:
        return Codebook(dtype, packed, scales, parts.table, group_size)
    return GroupInt(
        dtype,
        packed,
        scales,
        parts.bits,
        group_size,
        parts.centre,
        minimums=numbers(parts.minimums),
        scale_units=numbers(parts.units),
        minimum_units=numbers(parts.minimum_units),
    )


def _packed(parts: BlockParts) -> torch.Tensor:
    """Codes as weights have them, uint8 [blocks, bytes]."""
    codes = parts.codes
    if isinstance(codes, Nibbles):
        return pair_nibbles(torch.from_numpy(codes.packed), codes.group)
    if isinstance(codes, SignedBytes):
        return lift_bytes(torch.from_numpy(codes.packed))
    whole = torch.from_numpy(np.ascontiguousarray(codes))
    return pack_halves(whole) if parts.bits == 4 else whole
