"""Gated activations on CUDA devices, where nothing computes them together with a product."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.gated_activation.interface import Gate, check_gate_up
from pagemesh.kernels.gated_activation.kernel import gated_activation_kernel
from pagemesh.kernels.launch import launch
from pagemesh.kernels.whole_numbers import cdiv, next_power_of_2

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
