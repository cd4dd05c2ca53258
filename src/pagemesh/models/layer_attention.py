"""How each layer of a decoder attends, for whoever computes the attention."""

from __future__ import annotations

import torch

from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.parameters import Parameters
from pagemesh.models.spec import DecoderSpec


def make_layer_attention(spec: DecoderSpec, parameters: Parameters) -> list[LayerAttention]:
    """How each layer attends; layers that attend alike share one."""
    attention = spec.attention
    slopes = None
    if attention.alibi_slopes:
        slopes = torch.tensor(attention.alibi_slopes, device=parameters.device)
    shared: dict[tuple[int | None, int | None], LayerAttention] = {}
    made = []
    for index, layer in enumerate(spec.layers):
        key = (layer.sliding_window, index if attention.sinks else None)
        if key not in shared:
            shared[key] = LayerAttention(
                scale=attention.scale,
                sliding_window=layer.sliding_window,
                soft_cap=attention.soft_cap,
                sinks=parameters.get(f"layers.{index}.sinks"),
                alibi_slopes=slopes,
            )
        made.append(shared[key])
    return made
