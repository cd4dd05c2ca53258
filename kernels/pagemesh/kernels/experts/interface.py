"""What a mixture's experts take and give, and the plain definition."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from pagemesh.kernels.expert_choice.interface import Choices
from pagemesh.kernels.gated_activation.interface import Gate, ReferenceGatedActivation
from pagemesh.kernels.linear.reference import multiply_plainly
from pagemesh.kernels.linear.weight import Weight


class Stack(NamedTuple):
    """One projection of all experts."""

    weight: Weight
    """[experts, out, in]."""

    bias: torch.Tensor | None
    """[experts, out]."""


class Experts(Protocol):
    """Gated MLPs of which each token uses a few: the sum of their outputs by a token's own weights.

    What a token gets depends on the other tokens by no bit.
    """

    def __call__(self, hidden: torch.Tensor, choices: Choices) -> torch.Tensor:
        """[T, hidden] of `hidden` [T, hidden] and the choices of as many tokens; a new tensor."""
        ...

    def add_to(
        self, residual: torch.Tensor, hidden: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        """`residual` [T, hidden] and that, as a new tensor; the sum may be rounded once instead of twice."""
        ...


def check_stacks(ups: Stack, downs: Stack) -> None:
    """Raise ValueError unless the second projections take what comes out of the first, activated."""
    shapes = [list(stack.weight.shape) for stack in (ups, downs)]
    if (
        len(shapes[0]) != 3
        or len(shapes[1]) != 3
        or ups.weight.shape[0] != downs.weight.shape[0]
        or ups.weight.shape[1] != 2 * downs.weight.shape[2]
        or ups.weight.shape[2] != downs.weight.shape[1]
        or (ups.weight.dtype, ups.weight.device) != (downs.weight.dtype, downs.weight.device)
    ):
        raise ValueError(
            f"experts' weights must be [experts, 2 · n, hidden] and [experts, hidden, n],"
            f" of one type and device, not {shapes[0]} of {ups.weight.dtype} on {ups.weight.device}"
            f" and {shapes[1]} of {downs.weight.dtype} on {downs.weight.device}"
        )
    for stack, shape in zip((ups, downs), shapes, strict=True):
        if stack.bias is not None and list(stack.bias.shape) != shape[:2]:
            raise ValueError(f"biases {list(stack.bias.shape)} do not fit experts' weights {shape}")


def check_choices(
    hidden: torch.Tensor, choices: Choices, residual: torch.Tensor | None = None
) -> None:
    """Raise ValueError unless each row of hidden states has weights, experts and a place in the sum."""
    weights, chosen = choices.weights, choices.experts
    num_tokens = len(hidden)
    if (
        hidden.ndim != 2
        or weights.ndim != 2
        or weights.shape != chosen.shape
        or len(chosen) != num_tokens
        or chosen.dtype != torch.int64
        or weights.dtype not in (hidden.dtype, torch.float32)
    ):
        raise ValueError(
            f"weights {list(weights.shape)} of {weights.dtype} and chosen experts"
            f" {list(chosen.shape)} of {chosen.dtype} do not fit"
            f" hidden states {list(hidden.shape)} of {hidden.dtype}"
        )
    if residual is not None and residual.shape != hidden.shape:
        raise ValueError(
            f"the residual {list(residual.shape)} does not fit hidden states {list(hidden.shape)}"
        )


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
        shares = torch.zeros(len(hidden), self._ups.weight.shape[0], device=hidden.device)
        shares.scatter_(1, choices.experts, choices.weights.float())
        total = torch.zeros(hidden.shape, device=hidden.device)
        for expert, share in enumerate(shares.unbind(1)):
            activated = self._activate(_multiply(self._ups, expert, hidden.float()))
            total += share.unsqueeze(1) * _multiply(self._downs, expert, activated)
        return total


def _multiply(stack: Stack, expert: int, rows: torch.Tensor) -> torch.Tensor:
    product = multiply_plainly(stack.weight.matrix(expert), rows)
    return product if stack.bias is None else product + stack.bias[expert].float()
