"""The forward pass of a decoder, for any mixture of sequences laid out as one flat run of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.nn import functional

from pagemesh.kernels.linear import Linear
from pagemesh.models.rope import rotate, rotation_table
from pagemesh.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Projections that read the same input are fused."""

    attention_norm: torch.Tensor
    """float32 [hidden]."""
    qkv: Linear
    """Query, key and value heads, the rows of the first two in pairs (see `rope`)."""
    o: Linear
    mlp_norm: torch.Tensor
    """float32 [hidden]."""
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything that was learned."""

    embed: torch.Tensor
    """[vocab, hidden]."""
    layers: Sequence[LayerWeights]
    final_norm: torch.Tensor
    """float32 [hidden]."""
    lm_head: Linear
    """To the vocabulary."""


class StepAttention(Protocol):
    """One step's access to KV, made by the caller for the tokens of that step."""

    def write(self, layer: int, keys_values: torch.Tensor) -> None:
        """Store the tokens' keys and values, [T, 2, kv heads, head_dim]; strided views are fine."""
        ...

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Causal attention of [T, heads, head_dim] over all that is stored; same shape, contiguous."""
        ...


class Decoder:
    """Pre-norm transformer decoder for positions below `max_model_len`. Keeps no state between calls."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, max_model_len: int) -> None:
        self.spec = spec
        self._rotations = rotation_table(spec.rope, spec.head_dim, max_model_len)
        self._weights = weights
        # √(hidden · ε): see _norm.
        self._norm_floor = torch.tensor(math.sqrt(spec.hidden_size * spec.norm_eps))
        self._norm_gain = math.sqrt(spec.hidden_size)
        self._layers = [self._with_gain(layer) for layer in weights.layers]
        self._final_norm = weights.final_norm * self._norm_gain

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Run tokens through all layers, storing their KV.

        `token_ids` and `positions` are int64 [T]. Gives the normed hidden states [R, hidden] of
        `rows` (int64 [R]; all tokens when None), for `logits`.
        """
        spec = self.spec
        hidden = functional.embedding(token_ids, self._weights.embed)
        rotation = self._rotations.index_select(0, positions).unsqueeze(1)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            normed = self._norm(hidden, layer.attention_norm)
            heads = layer.qkv(normed).view(-1, spec.num_qkv_heads, spec.head_dim)
            rotate(heads[:, : spec.num_heads + spec.num_kv_heads], rotation)
            attention.write(
                index, heads[:, spec.num_heads :].view(-1, 2, spec.num_kv_heads, spec.head_dim)
            )
            if index == last and rows is not None and rows.numel() == 0:
                return hidden[:0]
            attended = attention.attend(index, heads[:, : spec.num_heads]).flatten(1)
            if index == last and rows is not None:
                # Nothing reads the other tokens' hidden states any more, only their KV.
                attended, hidden = attended.index_select(0, rows), hidden.index_select(0, rows)
            hidden = layer.o.add_to(hidden, attended)
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, -1)
            hidden = layer.down.add_to(hidden, functional.silu(gate).mul_(up))
        return self._norm(hidden, self._final_norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocab] of normed hidden states [R, hidden], in the model's own type."""
        return self._weights.lm_head(hidden)

    def _norm(self, hidden: torch.Tensor, gained_weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm in float32 (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

        x / √(mean x² + ε) = √n · x / hypot(‖x‖, √(n·ε)); √n is part of the weight already. On a CPU
        this is half the number of tensor operations of torch's rms_norm, whose calls dominate at
        batch size 1.
        """
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        return (
            torch.div(hidden, length.hypot_(self._norm_floor)).mul_(gained_weight).to(hidden.dtype)
        )

    def _with_gain(self, layer: LayerWeights) -> LayerWeights:
        return replace(
            layer,
            attention_norm=layer.attention_norm * self._norm_gain,
            mlp_norm=layer.mlp_norm * self._norm_gain,
        )
