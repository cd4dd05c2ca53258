"""What a mixture's experts take and give, whoever computes them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from pagemesh.kernels.expert_choice.interface import Choices


class Stack(NamedTuple):
    """One projection of all experts."""

    weight: torch.Tensor
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
        ups.weight.ndim != 3
        or downs.weight.ndim != 3
        or len(ups.weight) != len(downs.weight)
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
        or weights.dtype != hidden.dtype
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
