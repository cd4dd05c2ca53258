"""The plain definition: one assignment per token."""

from __future__ import annotations

import torch


def write_kv_reference(
    layer_kv: torch.Tensor, keys_values: torch.Tensor, slots: torch.Tensor
) -> None:
    """Same as `write_kv`, from int64 slots [T]."""
    block_size = layer_kv.shape[2]
    for token, slot in enumerate(slots.tolist()):
        layer_kv[:, slot // block_size, slot % block_size] = keys_values[token]
