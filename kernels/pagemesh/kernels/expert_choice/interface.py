"""What choosing experts takes and gives, and the plain definition."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch


class ByExpert(NamedTuple):
    """The choices of all tokens by expert, cut into tiles for matmuls.

    A pair is one choice of one token; pairs are numbered token by token.
    """

    order: torch.Tensor
    """Pairs by expert, those of one expert by number, int32 [pairs]."""

    tiles: torch.Tensor
    """int32 [tiles, 3]: expert, first place in `order` and end of the expert's places; where there is no
    tile, first and end are 0."""


class Choices(NamedTuple):
    """The experts of each token."""

    weights: torch.Tensor
    """[T, choices], of the type of the hidden states or float32."""

    experts: torch.Tensor
    """int64 [T, choices], each one once, the best first."""

    by_expert: ByExpert | None = None
    """The same in another order, if whoever chose has found it on the way."""


class ExpertChoice(Protocol):
    """Softmax and the best few. What a token gets depends on the other tokens by no bit."""

    def __call__(self, logits: torch.Tensor) -> Choices:
        """Of a router's logits [T, experts]; weights are of their type. Of equal ones the first experts are
        chosen: equal logits are common in bfloat16."""
        ...


def check_logits(logits: torch.Tensor, num_chosen: int) -> None:
    """Raise ValueError unless there are as many experts as are chosen."""
    if logits.ndim != 2 or not 0 < num_chosen <= logits.shape[1]:
        raise ValueError(f"{num_chosen} experts cannot be chosen by logits {list(logits.shape)}")


class ReferenceExpertChoice:
    """`ExpertChoice` by torch, on every device."""

    def __init__(self, num_chosen: int, *, normalize: bool) -> None:
        self._num_chosen = num_chosen
        self._normalize = normalize

    def __call__(self, logits: torch.Tensor) -> Choices:
        check_logits(logits, self._num_chosen)
        if self._normalize:
            # What a softmax over all gives when it is normed to 1 afterwards.
            best, experts = self._best(logits)
            weights = torch.softmax(best, dim=-1, dtype=torch.float32)
        else:
            weights, experts = self._best(torch.softmax(logits, dim=-1, dtype=torch.float32))
        return Choices(weights.to(logits.dtype), experts)

    def _best(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The highest of each row, and where they are; `topk` takes any of equal ones."""
        values, places = torch.sort(values, dim=-1, descending=True, stable=True)
        count = self._num_chosen
        return values[:, :count].contiguous(), places[:, :count].contiguous()
