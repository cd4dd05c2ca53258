"""What a runner and a model know of each other, whoever computes the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch

from pagemesh.kernels.write_kv import Turn
from pagemesh.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers that memory and scheduling depend on."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Number of token ids."""

    num_layer_weights: int
    """Weights that a token is multiplied with in the largest layer."""

    causal: bool = True
    """Whether tokens see those in front of them alone; else their KV is of use for one layer only."""

    @classmethod
    def of(cls, spec: DecoderSpec) -> Self:
        """The numbers of a spec."""
        return cls(
            num_layers=spec.num_layers,
            num_heads=spec.attention.num_heads,
            num_kv_heads=spec.attention.num_kv_heads,
            head_dim=spec.attention.head_dim,
            vocab_size=spec.vocab_size,
            num_layer_weights=max(map(spec.num_active_weights, range(spec.num_layers))),
            causal=spec.causal,
        )


class ForwardContext(Protocol):
    """One step's access to KV, made by the caller for the tokens of that step."""

    def write(self, layer: int, heads: torch.Tensor, turn: Turn | None) -> None:
        """Turn the tokens' queries and keys in place, and store keys and values: see `KvWriter.write`."""
        ...

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attention of [T, heads, head_dim] over all that is stored, causal if the model is; same shape,
        contiguous."""
        ...


class CausalModel(Protocol):
    """A decoder-only model, or an encoder, over KV that its caller keeps. Keeps no state between calls."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: ForwardContext,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Run tokens through all layers, storing their KV: once per layer `write`, then `attend`.

        `token_ids` and `positions` are int64 [T]. Gives the hidden states [R, hidden] of `rows` (int64
        [R]; all tokens when None), for `logits`. With no rows at all, the last `attend` is left out.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocab] of what `forward` gave, in the model's own type."""
        ...
