"""Mixture of experts (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538): each token uses the best few."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pagemesh.kernels.experts import Experts
from pagemesh.kernels.linear import Linear
from pagemesh.models.mlp import FeedForward

Weighting = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def share_of_chosen(logits: torch.Tensor, num_chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and experts, [T, num_chosen] each, of router logits [T, experts]; weights sum to 1.

    The softmax of the best logits: what a softmax over all gives when it is normed to 1 afterwards.
    """
    best, experts = _best(logits, num_chosen)
    return torch.softmax(best, dim=-1, dtype=torch.float32), experts


def share_of_all(logits: torch.Tensor, num_chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with weights that are shares among all experts."""
    shares = torch.softmax(logits, dim=-1, dtype=torch.float32)
    return _best(shares, num_chosen)


def _best(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest of each row, and where they are; of equal ones the first.

    Equal logits are common in bfloat16, and `topk` takes any of them.
    """
    values, places = torch.sort(values, dim=-1, descending=True, stable=True)
    return values[:, :count].contiguous(), places[:, :count].contiguous()


class Router:
    """Chooses each token's experts and weighs them."""

    def __init__(self, projection: Linear, num_chosen: int, weighting: Weighting) -> None:
        """`projection` gives a logit for each expert."""
        self._projection = projection
        self._num_chosen = num_chosen
        self._weighting = weighting

    def choose(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (in the type of `hidden`) and experts (int64) of [T, hidden], [T, num_chosen] each."""
        weights, experts = self._weighting(self._projection(hidden), self._num_chosen)
        return weights.to(hidden.dtype), experts


class Mixture:
    """A router and its experts."""

    def __init__(self, router: Router, experts: Experts) -> None:
        self._router = router
        self._experts = experts

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self._experts(hidden, *self._router.choose(hidden))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self._experts.add_to(residual, hidden, *self._router.choose(hidden))


class SharedMixture:
    """Experts that are chosen and one that all tokens use, weighted by its own gate (Qwen 2 MoE)."""

    def __init__(self, mixture: Mixture, shared: FeedForward, gate: Linear) -> None:
        """`gate` gives one number."""
        self._mixture = mixture
        self._shared = shared
        self._gate = gate

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        # A sigmoid, row by row: torch's own rounds a row by where it lies among the others.
        gate = functional.pad(self._gate(hidden), (0, 1))
        weight = torch.softmax(gate, dim=-1, dtype=torch.float32)[:, :1].to(hidden.dtype)
        return self._shared.compute(hidden).mul_(weight).add_(self._mixture.compute(hidden))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self.compute(hidden).add_(residual)
