"""Both ends of a decoder: from token ids to hidden states, and from hidden states to logits."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from pagemesh.errors import InternalError
from pagemesh.kernels.linear import Linear, make_linear
from pagemesh.models.norms import Norm


class TokenEmbedding(Protocol):
    """From token ids to hidden states."""

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T, hidden] of two int64 [T]."""
        ...


class Embedding:
    """Looks tokens up."""

    def __init__(self, table: torch.Tensor) -> None:
        """`table` is [vocab, hidden]."""
        self._table = table

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return functional.embedding(token_ids, self._table)


class ScaledEmbedding:
    """Looks tokens up and scales them.

    Scaled at every step, because the table itself is also the output projection.
    """

    def __init__(self, table: torch.Tensor, scale: float) -> None:
        """The scale is rounded to the table's type first, as the models were trained (Gemma)."""
        self._table = table
        self._scale = torch.tensor(scale, dtype=table.dtype, device=table.device)

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return functional.embedding(token_ids, self._table).mul_(self._scale)


class PlacedEmbedding:
    """Looks tokens up, adds what all tokens have and what each position has, and norms the sum (BERT)."""

    def __init__(
        self,
        table: torch.Tensor,
        token_type: torch.Tensor | None,
        position_table: torch.Tensor | None,
        norm: Norm,
    ) -> None:
        """`token_type` is [hidden], `position_table` [positions, hidden] from the first position on."""
        self._table = table
        self._token_type = token_type
        self._position_table = position_table
        self._norm = norm

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = functional.embedding(token_ids, self._table)
        if self._token_type is not None:
            hidden += self._token_type
        if self._position_table is not None:
            hidden += functional.embedding(positions, self._position_table)
        return self._norm.apply(hidden)


class Head(Protocol):
    """From normed hidden states to logits."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, vocab] of [R, hidden], in the model's own type."""
        ...


class LinearHead:
    """One projection."""

    def __init__(self, projection: Linear) -> None:
        """`projection` gives a logit for each token id."""
        self._projection = projection

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._projection(hidden)


class NoHead:
    """Of models that make embeddings only."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Head`; never asked for, because requests for tokens are refused."""
        raise InternalError("the model has no output head")


class CappedHead:
    """A projection whose logits stay between ± cap."""

    def __init__(self, projection: Linear, cap: float) -> None:
        """`projection` gives a logit for each token id."""
        self._projection = projection
        self._cap = cap

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._projection(hidden).div_(self._cap).tanh_().mul_(self._cap)


def make_embedding(table: torch.Tensor, scale: float) -> TokenEmbedding:
    """The one that fits; `table` is [vocab, hidden]."""
    return Embedding(table) if scale == 1.0 else ScaledEmbedding(table, scale)


def make_head(weight: torch.Tensor, soft_cap: float | None) -> Head:
    """The one that fits; `weight` is [vocab, hidden]."""
    projection = make_linear(weight)
    return LinearHead(projection) if soft_cap is None else CappedHead(projection, soft_cap)
