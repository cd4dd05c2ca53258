"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) as a complex product.

Hugging Face checkpoints pair dimension i of a head's turned part with i + half of it. `pair_rows`
reorders the rows of the query and key projections once, so that pairs lie side by side, as in Meta's
original code: a pair is then one complex number, and the rotation one multiplication in place. Dot
products of queries and keys, and thereby the model, are unchanged by the reordering.
"""

from __future__ import annotations

import torch

from pagemesh.models.rope_kinds import frequencies
from pagemesh.models.spec import RopeSpec


def rotation_table(rope: RopeSpec, head_dim: int, max_position: int) -> torch.Tensor:
    """cos + i sin of every position and frequency: complex64 [max_position, head_dim / 2].

    Dimensions that are not turned have a factor of exactly 1.
    """
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies(rope))
    table = torch.ones(max_position, head_dim // 2, dtype=torch.complex64)
    lengths = torch.full_like(angles, rope.attention_factor)
    table[:, : rope.rotary_dim // 2] = torch.polar(lengths, angles)
    return table


def pair_rows(projection: torch.Tensor, num_heads: int, rotary_dim: int) -> torch.Tensor:
    """Reorder the turned rows of each head of a query or key weight or bias from halves to pairs."""
    heads = projection.view(num_heads, -1, *projection.shape[1:])
    halves = heads[:, :rotary_dim].reshape(num_heads, 2, -1, *projection.shape[1:])
    pairs = halves.transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, heads[:, rotary_dim:]], dim=1).view(projection.shape)
