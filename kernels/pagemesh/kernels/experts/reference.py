"""The plain definition."""

from __future__ import annotations

import torch

from pagemesh.kernels.expert_choice.interface import Choices
from pagemesh.kernels.experts.interface import Stack, check_choices, check_stacks
from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.gated_activation.reference import ReferenceGatedActivation


class ReferenceExperts:
    """`Experts` by torch, on every device: all experts of all tokens, in float32."""

    def __init__(self, ups: Stack, downs: Stack, gate: Gate) -> None:
        check_stacks(ups, downs)
        self._ups = ups
        self._downs = downs
        self._activate = ReferenceGatedActivation(gate)

    def __call__(self, hidden: torch.Tensor, choices: Choices) -> torch.Tensor:
        return self._sum(hidden, choices).to(hidden.dtype)

    def add_to(
        self, residual: torch.Tensor, hidden: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        check_choices(hidden, choices, residual)
        return (residual.float() + self._sum(hidden, choices)).to(hidden.dtype)

    def _sum(self, hidden: torch.Tensor, choices: Choices) -> torch.Tensor:
        check_choices(hidden, choices)
        shares = torch.zeros(len(hidden), len(self._ups.weight), device=hidden.device)
        shares.scatter_(1, choices.experts, choices.weights.float())
        total = torch.zeros(hidden.shape, device=hidden.device)
        for expert, share in enumerate(shares.unbind(1)):
            activated = self._activate(_multiply(self._ups, expert, hidden.float()))
            total += share.unsqueeze(1) * _multiply(self._downs, expert, activated)
        return total


def _multiply(stack: Stack, expert: int, rows: torch.Tensor) -> torch.Tensor:
    product = rows @ stack.weight[expert].float().t()
    return product if stack.bias is None else product + stack.bias[expert].float()
