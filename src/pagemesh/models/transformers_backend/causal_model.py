"""A model of transformers as a `CausalModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from pagemesh.models.interface import StepAttention
from pagemesh.models.transformers_backend.attention import AttentionCall, answering
from pagemesh.models.transformers_backend.products import replace_products


class TransformersModel:
    """Runs the tokens of a step as one row of a batch. See `CausalModel`.

    transformers gives no way to run a model's output head alone, with the caps and scales around it.
    So `forward` gives the logits of the rows already, and `logits` gives them back.
    """

    def __init__(self, model: Any, head_dim: int) -> None:
        """`model` runs the `PAGED` attention; `head_dim` is that of the KV blocks."""
        self._model = model
        self._head_dim = head_dim

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `CausalModel`; gives logits [R, vocab]."""
        with answering(_PagedCalls(attention, self._head_dim)):
            output = self._model(
                input_ids=token_ids.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=0 if rows is None else rows,
            )
        logits: torch.Tensor = output.logits.squeeze(0)
        return logits

    @property
    def name(self) -> str:
        """Of the model's class."""
        return type(self._model).__name__

    def replace_products(self) -> None:
        """Multiply with pagemesh's products from now on, on the device where the model is."""
        replace_products(self._model)

    def move(self, device: torch.device) -> None:
        """Run on another device from now on; before products are replaced."""
        self._model.to(device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class _PagedCalls:
    """`AttentionCalls` over a step's KV: the n-th call of a forward pass is layer n."""

    def __init__(self, attention: StepAttention, head_dim: int) -> None:
        self._attention = attention
        self._head_dim = head_dim
        self._layer = 0

    def attend(self, call: AttentionCall) -> torch.Tensor:
        layer, self._layer = self._layer, self._layer + 1
        query, key, value = (self._tokens(each) for each in (call.query, call.key, call.value))
        # The model has turned them itself.
        self._attention.write(layer, torch.cat((key, value), dim=1), None)
        attended = self._attention.attend(layer, query)
        return attended[..., : call.value.shape[-1]].unsqueeze(0)

    def _tokens(self, heads: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_dim] of [1, heads, T, dim]; zeros behind what is shorter change no product."""
        tokens = heads.squeeze(0).transpose(0, 1)
        missing = self._head_dim - tokens.shape[-1]
        return tokens if missing == 0 else functional.pad(tokens, (0, missing))
