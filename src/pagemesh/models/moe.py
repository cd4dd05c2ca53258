"""Mixture of experts (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538): each token uses the best few."""

from __future__ import annotations

import torch
from torch.nn import functional

from pagemesh.kernels.expert_choice import ExpertChoice
from pagemesh.kernels.experts import Experts
from pagemesh.kernels.linear import Linear
from pagemesh.models.mlp import FeedForward


class Mixture:
    """A router, which gives a logit for each expert, and the experts that are chosen by these."""

    def __init__(self, router: Linear, choose: ExpertChoice, experts: Experts) -> None:
        self._router = router
        self._choose = choose
        self._experts = experts

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._experts(hidden, self._choose(self._router(hidden)))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self._experts.add_to(residual, hidden, self._choose(self._router(hidden)))


class SharedMixture:
    """Experts that are chosen and one that all tokens use, weighted by its own gate (Qwen 2 MoE)."""

    def __init__(self, mixture: Mixture, shared: FeedForward, gate: Linear) -> None:
        """`gate` gives one number."""
        self._mixture = mixture
        self._shared = shared
        self._gate = gate

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        # A sigmoid, row by row: torch's own rounds a row by where it lies among the others.
        gate = functional.pad(self._gate(hidden), (0, 1))
        weight = torch.softmax(gate, dim=-1, dtype=torch.float32)[:, :1].to(hidden.dtype)
        return self._shared.compute(hidden).mul_(weight).add_(self._mixture.compute(hidden))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.compute(hidden).add_(residual)
