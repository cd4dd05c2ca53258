"""Heads that are turned, as they are while keys and values are stored."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagemesh.kernels.write_kv import KvWriter, Turn, make_kv_writer

CPU = torch.device("cpu")


class Written(NamedTuple):
    """What there is afterwards, on the CPU."""

    heads: torch.Tensor  # [T, query heads + 2 · kv heads, D], each token's
    layer_kv: torch.Tensor  # [2, 1, T + 1, kv heads, D], token t in slot T - t


def write_turned(
    heads: torch.Tensor,
    num_kv_heads: int,
    turn: Turn,
    device: torch.device = CPU,
    writer: KvWriter | None = None,
) -> Written:
    """Turn and store heads, which stay as they are; slot 0 stays empty."""
    num_tokens, _, head_dim = heads.shape
    writer = writer or make_kv_writer(device)
    layer_kv = torch.zeros(2, 1, num_tokens + 1, num_kv_heads, head_dim, dtype=heads.dtype)
    layer_kv, there = layer_kv.to(device), heads.clone().to(device)
    slots = torch.arange(num_tokens, 0, -1, device=device)
    turn = Turn(
        turn.factors.to(device),
        None if turn.norm_weight is None else turn.norm_weight.to(device),
        turn.norm_eps,
    )
    writer.write(layer_kv, there, writer.slot_mapping(slots, num_tokens + 1), None, turn)
    return Written(there.cpu(), layer_kv.cpu())


def turned(heads: torch.Tensor, turn: Turn, device: torch.device = CPU) -> torch.Tensor:
    """[T, H, D]: of queries and one key."""
    values = heads.new_zeros(len(heads), 1, heads.shape[2])
    return write_turned(torch.cat((heads, values), dim=1), 1, turn, device).heads[:, :-1]
