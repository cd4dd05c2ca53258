"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) as a complex product.

Hugging Face checkpoints pair dimension i of a head's turned part with i + half of it. `pair_rows`
reorders the rows of the query and key projections once, so that pairs lie side by side, as in Meta's
original code: a pair is then one complex number, and the rotation one multiplication in place. Dot
products of queries and keys, and thereby the model, are unchanged by the reordering.

The frequencies of a model never change while it runs, or the tokens of a request would depend on its
own history and on its neighbours: KV that was computed at one length is read at another, in other
batches and on other workers. Kinds whose frequencies follow the length of a context in other programs
(dynamic, longrope) take those of the longest context that is served.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from pagemesh.models.spec import DecoderSpec, RopeKind, RopeSpec


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


def fix_rope(rope: RopeSpec, max_model_len: int) -> RopeSpec:
    """The same without what depends on the longest context served, in tokens.

    dynamic: as if every context were that long (as vLLM does for the longest that the factor allows);
    default RoPE up to the original context. longrope: the long factors for a context longer than the
    original one, else the short ones (as vLLM).
    """
    if rope.kind == "dynamic":
        stretch = max(max_model_len / rope.original_max_position, 1.0)
        dim = rope.rotary_dim
        # NTK-aware scaling (https://arxiv.org/abs/2309.00071, appendix A.1 and A.2).
        base = rope.theta * (rope.factor * stretch - (rope.factor - 1)) ** (dim / (dim - 2))
        return RopeSpec(theta=base, rotary_dim=dim)
    if rope.kind == "longrope":
        is_long = max_model_len > rope.original_max_position
        factors = rope.long_factors if is_long else rope.short_factors
        return replace(rope, short_factors=factors, long_factors=factors)
    return rope


def fix_ropes(spec: DecoderSpec, max_model_len: int) -> DecoderSpec:
    """What depends on the longest context is part of the model, and thereby of its fingerprint."""
    layers = tuple(
        replace(layer, rope=fix_rope(layer.rope, max_model_len) if layer.rope else None)
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


def frequencies(rope: RopeSpec) -> torch.Tensor:
    """Radians per position, float32 [rotary_dim / 2], of a RoPE that `fix_rope` gave."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    return _STRETCHES[rope.kind](1.0 / rope.theta**exponents, rope)


def _keep(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    return frequencies


def _stretch_all(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    return frequencies / rope.factor


def _stretch_each(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """LongRoPE (Ding et al. 2024, https://arxiv.org/abs/2402.13753): a searched factor for each."""
    return frequencies / torch.tensor(rope.long_factors, dtype=torch.float32)


def _stretch_low(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Llama 3.1: stretch long wavelengths, keep short ones, interpolate between.

    From apply_scaling in https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py.
    """
    wavelengths = 2 * math.pi / frequencies
    keep = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    return _interpolate(frequencies, rope.factor, keep.clamp(0.0, 1.0))


def _stretch_by_turns(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071): keep what turns often enough."""
    low = _dimension_with(rope.beta_fast, rope)
    high = _dimension_with(rope.beta_slow, rope)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001
    dimensions = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    stretched = ((dimensions - low) / (high - low)).clamp(0.0, 1.0)
    return _interpolate(frequencies, rope.factor, 1 - stretched)


def _dimension_with(num_turns: float, rope: RopeSpec) -> float:
    """Index, not rounded, of the frequency that turns so often over the original context."""
    wavelength = rope.original_max_position / num_turns
    return rope.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))


def _interpolate(frequencies: torch.Tensor, factor: float, keep: torch.Tensor) -> torch.Tensor:
    return (1 - keep) * frequencies / factor + keep * frequencies


_STRETCHES: Final[dict[RopeKind, Callable[[torch.Tensor, RopeSpec], torch.Tensor]]] = {
    "default": _keep,
    "linear": _stretch_all,
    "llama3": _stretch_low,
    "yarn": _stretch_by_turns,
    "longrope": _stretch_each,
}
