"""Gated activations as vector code: one pass, nothing in between is written to memory."""

from __future__ import annotations

import functools
import math

import torch
from llvmlite import ir

from pagemesh.kernels.gated_activation.interface import Gate, check_gate_up
from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, map_row
from pagemesh.kernels.jit.emit import Emitter
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.jit.vector_math import clamp, normal_share, sigmoid


class CpuGatedActivation:
    """`GatedActivation` of CPU tensors."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        check_gate_up(gate_up)
        if gate_up.stride(-1) != 1:
            gate_up = gate_up.contiguous()
        num_rows, double = gate_up.shape
        size = double // 2
        output = torch.empty(num_rows, size, dtype=gate_up.dtype)
        kernel = _compile(self._gate, size, gate_up.dtype)
        kernel.run(num_rows, size, (gate_up.data_ptr(), gate_up.stride(0), output.data_ptr()))
        return output


@per_isa
def _compile(recipe: Recipe, gate: Gate, size: int, torch_dtype: torch.dtype) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")
    element = ELEMENT_TYPES[dtype]

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        gates = e.at(values["gate_up"], e.builder.mul(row, values["stride"]))
        ups = e.at(gates, e.int64(size))
        target = e.at(values["output"], e.builder.mul(row, e.int64(size)))
        function = functools.partial(FUNCTIONS[gate.kind], e, gate)
        map_row(e, size, [(gates, dtype), (ups, dtype)], target, dtype, function)

    return RowKernel(recipe, {"gate_up": element, "stride": None, "output": element}, emit_row)


def _silu(e: Emitter, _: Gate, gates: ir.Value, ups: ir.Value) -> ir.Value:
    b = e.builder
    return b.fmul(b.fmul(gates, sigmoid(e, gates)), ups)


def _geglu(e: Emitter, _: Gate, gates: ir.Value, ups: ir.Value) -> ir.Value:
    return e.builder.fmul(e.builder.fmul(gates, normal_share(e, gates)), ups)


def _gelu_tanh(e: Emitter, _: Gate, gates: ir.Value, ups: ir.Value) -> ir.Value:
    """(1 + tanh z) / 2 = sigmoid(2 z)."""
    b = e.builder
    cubes = b.fmul(b.fmul(gates, gates), gates)
    inner = e.fma(cubes, e.splat(0.044715), gates)
    doubled = b.fmul(inner, e.splat(2 * math.sqrt(2 / math.pi)))
    return b.fmul(b.fmul(gates, sigmoid(e, doubled)), ups)


def _clamped_swiglu(e: Emitter, gate: Gate, gates: ir.Value, ups: ir.Value) -> ir.Value:
    b = e.builder
    gates = clamp(e, gates, -math.inf, gate.limit)
    ups = clamp(e, ups, -gate.limit, gate.limit)
    activated = b.fmul(gates, sigmoid(e, b.fmul(gates, e.splat(gate.alpha))))
    return b.fmul(activated, b.fadd(ups, e.splat(1.0)))


FUNCTIONS = {
    "silu": _silu,
    "geglu": _geglu,
    "gelu_tanh": _gelu_tanh,
    "clamped_swiglu": _clamped_swiglu,
}
