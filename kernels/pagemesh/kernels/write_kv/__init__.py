"""Stores the keys and values of a step's tokens in their block slots."""

from __future__ import annotations

import torch


def slot_rows(slots: torch.Tensor, num_slots: int) -> torch.Tensor:
    """Rows of key and value, int64 [T, 2], of int64 slots [T] in a layer of `num_slots` slots.

    A slot is block id * block_size + offset in the block.
    """
    return torch.stack([slots, slots + num_slots], dim=1)


def write_kv(layer_kv: torch.Tensor, keys_values: torch.Tensor, rows: torch.Tensor) -> None:
    """Store [T, 2, kv heads, head_dim] in a layer's [2, blocks, block_size, kv heads, head_dim].

    `rows` comes from `slot_rows`; no two tokens may share a slot. A row out of range raises
    IndexError. One scatter on every device that torch has, so there is nothing to dispatch.
    """
    if layer_kv.dtype != keys_values.dtype or layer_kv.shape[3:] != keys_values.shape[2:]:
        raise ValueError(
            f"cannot store {keys_values.dtype} {list(keys_values.shape)} "
            f"in {layer_kv.dtype} {list(layer_kv.shape)}"
        )
    layer_kv.view(-1, *layer_kv.shape[3:]).index_put_((rows,), keys_values)
