"""What storing keys and values takes, whoever does it."""

from __future__ import annotations

from typing import Protocol

import torch

from pagemesh.kernels.kv_scales import KvScales, check_scales


class KvWriter(Protocol):
    """Stores the keys and values of a step's tokens in their block slots."""

    def places(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """What `write` is told of slots, int64 [T], in layers of `num_slots`; once per step.

        A slot is block id * block_size + offset in the block. No two tokens may share one.
        """
        ...

    def write(
        self,
        layer_kv: torch.Tensor,
        keys_values: torch.Tensor,
        places: torch.Tensor,
        scales: KvScales | None = None,
    ) -> None:
        """Store [T, 2, kv heads, head_dim] in a layer's [2, blocks, block_size, kv heads, head_dim].

        In a layer of FP8 what is stored is the quotient by the head's scale, at most ±448; what is not a
        number stays none. Nothing is ever written but slots of the layer: on a CPU other slots raise
        IndexError; on a GPU, which cannot raise, their tokens are left out, as the padding of a captured
        step is, whose slots are -1.

        Raises ValueError for other shapes, types and strides.
        """
        ...


def check_write(
    layer_kv: torch.Tensor, keys_values: torch.Tensor, places: torch.Tensor, scales: KvScales | None
) -> None:
    """Raise ValueError unless the tokens' keys and values fit the layer."""
    heads = layer_kv.shape[3:]
    is_stored = keys_values.dtype == layer_kv.dtype or scales is not None
    if layer_kv.ndim != 5 or keys_values.shape[1:] != (2, *heads) or not is_stored:
        raise ValueError(
            f"cannot store {keys_values.dtype} {list(keys_values.shape)} "
            f"in {layer_kv.dtype} {list(layer_kv.shape)}"
        )
    if len(places) != len(keys_values):
        raise ValueError(
            f"{len(places)} slots do not fit keys and values of {len(keys_values)} tokens"
        )
    check_scales(scales, layer_kv.dtype, heads[0])
