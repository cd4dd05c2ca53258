"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) as a complex product.

Hugging Face checkpoints pair dimension i of a head with i + head_dim / 2. `pair_rows` reorders the
rows of the query and key projections once, so that pairs lie side by side, as in Meta's original
code: a pair is then one complex number, and the rotation one multiplication in place. Dot products
of queries and keys, and thereby the model, are unchanged by the reordering.
"""

from __future__ import annotations

import math

import torch

from pagemesh.models.spec import RopeSpec


def rotation_table(rope: RopeSpec, head_dim: int, max_position: int) -> torch.Tensor:
    """cos + i sin of every position and frequency: complex64 [max_position, head_dim / 2]."""
    angles = torch.outer(
        torch.arange(max_position, dtype=torch.float32), _frequencies(rope, head_dim)
    )
    return torch.polar(torch.ones_like(angles), angles)


def rotate(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Turn every head in place.

    `heads` is [T, H, D] with pairs side by side, its last dimension contiguous; `rotation` is
    complex64 [T, 1, D / 2]. Other types than float32 are turned in float32 and rounded once.
    """
    pairs = heads.view(*heads.shape[:2], -1, 2)
    if heads.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotation)
    else:
        turned = torch.view_as_complex(pairs.float()).mul_(rotation)
        pairs.copy_(torch.view_as_real(turned))


def pair_rows(projection: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder the rows of a query or key weight or bias from halves to pairs."""
    halves = projection.view(num_heads, 2, -1, *projection.shape[1:])
    return halves.transpose(1, 2).reshape(projection.shape)


def _frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _stretch_low_frequencies(frequencies, rope)


def _stretch_low_frequencies(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Llama 3.1: stretch long wavelengths, keep short ones, interpolate between.

    From apply_scaling in https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py.
    """
    wavelengths = 2 * math.pi / frequencies
    keep = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    keep = keep.clamp(0.0, 1.0)
    return (1 - keep) * frequencies / rope.factor + keep * frequencies
