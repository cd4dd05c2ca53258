"""Gated activations that stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import torch

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from tools.kernel_cases.case import Case, meta

_GATES: Final = (
    Gate("silu"),
    Gate("geglu"),
    Gate("gelu_tanh"),
    Gate("clamped_swiglu", 7.0, 1.702),
)


def cases() -> Iterator[Case]:
    """Of Llama 3 8B's MLP."""
    for gate in _GATES:
        activate = make_gated_activation(gate, torch.device("meta"))
        yield Case(gate.kind, partial(activate, meta(8, 28672)))
