"""From queries, gathered keys and values to outputs: one function for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagemesh.kernels.paged_attention.interface import LayerAttention


class Visible(NamedTuple):
    """What some queries, [a, b, queries, head_dim], may read; a and b are sequences and heads."""

    keys: torch.Tensor  # [a, b, keys, head_dim]; heads that share them have a stride of 0
    values: torch.Tensor  # likewise
    mask: torch.Tensor | None  # added to the scores, broadcast to [a, b, queries, keys]
    is_causal: bool  # query i sees the keys up to i; only without a mask
    head_shape: tuple[
        int, int, int
    ]  # view of a tensor over all heads, broadcast to [a, b, queries]


Attend = Callable[[torch.Tensor, Visible], torch.Tensor]
"""Gives outputs of the shape of the queries."""


def make_attend(features: LayerAttention) -> Attend:
    """What computes a layer, but for what `Visible.mask` says already."""
    if features.soft_cap is not None:
        return _Capped(features.scale, features.soft_cap, features.sinks)
    if features.sinks is not None:
        return _WithSinks(features.scale, features.sinks)
    return _Fused(features.scale)


class _Fused:
    """torch's fused attention."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(self, query: torch.Tensor, visible: Visible) -> torch.Tensor:
        keys, values, mask, is_causal, _ = visible
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=is_causal, scale=self._scale
        )


class _WithSinks:
    """torch's fused attention, corrected for the sinks afterwards.

    With Z = Σ exp(score), the weights' denominator is Z + exp(sink) instead of Z. So the output
    shrinks by Z / (Z + exp(sink)) = sigmoid(log Z - sink), and the fused kernel gives log Z.
    """

    def __init__(self, scale: float, sinks: torch.Tensor) -> None:
        self._scale = scale
        self._sinks = sinks.float()

    def __call__(self, query: torch.Tensor, visible: Visible) -> torch.Tensor:
        keys, values, mask, is_causal, head_shape = visible
        # scaled_dot_product_attention runs the same kernel on a CPU, but keeps log Z to itself.
        output, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, is_causal=is_causal, attn_mask=mask, scale=self._scale
        )
        shares = torch.sigmoid(log_sums - self._sinks.view(head_shape))
        result: torch.Tensor = output.mul_(shares.unsqueeze(-1))
        return result


class _Capped:
    """Scores as a matrix of their own, which the fused kernels never hold. Needs a mask, not `is_causal`."""

    def __init__(self, scale: float, soft_cap: float, sinks: torch.Tensor | None) -> None:
        self._scale = scale
        self._soft_cap = soft_cap
        self._sinks = None if sinks is None else sinks.float()

    def __call__(self, query: torch.Tensor, visible: Visible) -> torch.Tensor:
        keys, values, mask, is_causal, head_shape = visible
        assert not is_causal
        rows = query
        if keys.stride(1) == 0:
            # One matrix for the heads that share keys; broadcasting would copy the keys for each.
            keys, values = keys[:, :1], values[:, :1]
            rows = query.reshape(query.shape[0], 1, -1, query.shape[3])
        products = torch.matmul(rows, keys.transpose(-1, -2)).float()
        scores = products.mul_(self._scale / self._soft_cap).tanh_().mul_(self._soft_cap)
        scores = scores.view(*query.shape[:3], -1)
        if mask is not None:
            scores = scores.add_(mask)
        if self._sinks is None:
            weights = torch.softmax(scores, dim=-1)
        else:
            sinks = self._sinks.view(*head_shape, 1).expand(*query.shape[:3], 1)
            weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
        weights = weights.to(values.dtype).reshape(*rows.shape[:3], -1)
        return torch.matmul(weights, values).view(query.shape)
