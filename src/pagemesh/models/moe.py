"""Mixture of experts (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538): each token uses the best few.

On a CPU the tokens are sorted by expert, so that every expert that is used at all multiplies all its
tokens at once; a token's outputs are then weighted and summed in the order of its own choices. What
other tokens do changes nothing but how many rows a product has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional

from pagemesh.kernels.linear import Linear
from pagemesh.models.mlp import FeedForward, Mlp

Weighting = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def share_of_chosen(logits: torch.Tensor, num_chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and experts, [T, num_chosen] each, of router logits [T, experts]; weights sum to 1.

    The softmax of the best logits: what a softmax over all gives when it is normed to 1 afterwards.
    """
    best, experts = torch.topk(logits, num_chosen, dim=-1)
    return torch.softmax(best, dim=-1, dtype=torch.float32), experts


def share_of_all(logits: torch.Tensor, num_chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with weights that are shares among all experts."""
    shares = torch.softmax(logits, dim=-1, dtype=torch.float32)
    return torch.topk(shares, num_chosen, dim=-1)


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

    def __init__(self, router: Router, experts: Sequence[Mlp]) -> None:
        self._router = router
        self._experts = experts

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        weights, chosen = self._router.choose(hidden)
        num_tokens, num_chosen = chosen.shape
        by_choice = chosen.flatten()
        order = torch.argsort(by_choice, stable=True)
        sorted_inputs = hidden.index_select(0, order.div(num_chosen, rounding_mode="floor"))
        counts = torch.bincount(by_choice, minlength=len(self._experts)).tolist()
        outputs = torch.empty_like(sorted_inputs)
        outputs.index_copy_(0, order, torch.cat(list(self._run(sorted_inputs, counts))))
        return torch.bmm(weights.unsqueeze(1), outputs.view(num_tokens, num_chosen, -1)).squeeze(1)

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self.compute(hidden).add_(residual)

    def _run(self, sorted_inputs: torch.Tensor, counts: Sequence[int]) -> Iterator[torch.Tensor]:
        """Outputs of the experts that have tokens, expert by expert."""
        begin = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                yield expert.compute(sorted_inputs.narrow(0, begin, count))
                begin += count


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
