"""Gated activations on CUDA devices, where nothing computes them together with a matmul; and for kernels that do."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.gated_activation.interface import Gate, check_gate_up
from pagemesh.kernels.launch import cdiv, launch, next_power_of_2

_BLOCK: Final = 1024
"""Most columns of a program: 8 values of each half for each thread."""


class CudaGatedActivation:
    """`GatedActivation` of CUDA tensors."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        check_gate_up(gate_up)
        if gate_up.stride(-1) != 1:
            gate_up = gate_up.contiguous()
        num_rows, double = gate_up.shape
        size = double // 2
        output = gate_up.new_empty(num_rows, size)
        block = min(next_power_of_2(size), _BLOCK)
        launch(
            gated_activation_kernel,
            (num_rows, cdiv(size, block)),
            {
                "gate_up": gate_up,
                "stride": gate_up.stride(0),
                "output": output,
                "size": size,
                "limit": self._gate.limit,
                "alpha": self._gate.alpha,
                "KIND": self._gate.kind,
                "BLOCK": block,
            },
            overlaps=True,
        )
        return output


@triton.jit
def sigmoid(values):
    """Of float32, by exponentials that cannot overflow."""
    small = tl.exp(-tl.abs(values))
    return tl.where(values >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def activate(gates, ups, limit, alpha, KIND: tl.constexpr):
    """See `Gate`; all are float32. Comparisons let NaN through, which a minimum would hide."""
    if KIND == "silu":
        shares = sigmoid(gates)
    elif KIND == "geglu":
        shares = 0.5 + 0.5 * tl.erf(gates * 0.7071067811865476)
    elif KIND == "gelu_tanh":
        # (1 + tanh z) / 2 = sigmoid(2 z).
        shares = sigmoid(1.5957691216057308 * (gates + 0.044715 * gates * gates * gates))
    else:
        tl.static_assert(KIND == "clamped_swiglu")
        gates = tl.where(gates > limit, limit, gates)
        ups = tl.where(ups > limit, limit, tl.where(ups < -limit, -limit, ups)) + 1.0
        shares = sigmoid(alpha * gates)
    return gates * shares * ups


@triton.jit
def gated_activation_kernel(
    gate_up,
    stride,
    output,
    size,
    limit,
    alpha,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`gate_up` [T, 2 · size], rows `stride` apart; `output` [T, size] lies densely. One program for
    each row and block of columns."""
    wait_for_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    place = gate_up + row * stride + columns
    gates = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    ups = tl.load(place + size, mask=mask, other=0.0).to(tl.float32)
    activated = activate(gates, ups, limit, alpha, KIND)
    tl.store(output + row * size + columns, activated.to(output.dtype.element_ty), mask=mask)
