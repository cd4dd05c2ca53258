"""The forward pass of a decoder, for any mixture of sequences laid out as one flat run of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagemesh.models.attention_input import AttentionInput
from pagemesh.models.interface import ForwardContext
from pagemesh.models.norms import Norm
from pagemesh.models.residual import LayerOutput
from pagemesh.models.vocabulary import Head, TokenEmbedding


class Layer(NamedTuple):
    """One layer, put together from its parts when the model is loaded."""

    input: AttentionInput
    output: LayerOutput


class Decoder:
    """A `CausalModel` of layers that are all in memory."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        rotations: Sequence[torch.Tensor],
        layers: Sequence[Layer],
        final_norm: Norm,
        head: Head,
    ) -> None:
        """`rotations` has a table of all positions for each RoPE of the model, see `rotation_table`."""
        self._embedding = embedding
        self._rotations = rotations
        self._all_layers = layers
        self._layers = layers[:-1]
        self._last_layer = layers[-1]
        self._final_norm = final_norm
        self._head = head

    def first_layers(self, number: int) -> Decoder:
        """Of the same tensors, another decoder that leaves the other layers out."""
        layers = self._all_layers[:number]
        return Decoder(self._embedding, self._rotations, layers, self._final_norm, self._head)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: ForwardContext,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `CausalModel`; the hidden states are normed."""
        return self.run_layers(self.enter(token_ids, positions), attention, rows)

    def enter(self, token_ids: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        """What the layers begin with: hidden states [T, hidden], and a rotation of the positions, [T, head_dim
        / 2], for each RoPE of the model."""
        hidden = self._embedding.look_up(token_ids, positions)
        return [hidden, *(table.index_select(0, positions) for table in self._rotations)]

    def run_layers(
        self, entered: Sequence[torch.Tensor], attention: ForwardContext, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """The rest of `forward`. What was entered stays as it is."""
        hidden, *rotations = entered
        for index, layer in enumerate(self._layers):
            query = layer.input.project(hidden, rotations, attention)
            hidden = layer.output.finish(hidden, attention.attend(index, query).flatten(1))
        query = self._last_layer.input.project(hidden, rotations, attention)
        if rows is not None and rows.numel() == 0:
            return hidden[:0]
        attended = attention.attend(len(self._layers), query).flatten(1)
        if rows is not None:
            # Nothing reads the other tokens' hidden states any more, only their KV.
            attended, hidden = attended.index_select(0, rows), hidden.index_select(0, rows)
        return self._final_norm.apply(self._last_layer.output.finish(hidden, attended))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head.logits(hidden)
