"""Gated activations in Triton, also for kernels that make gates and ups themselves."""

from __future__ import annotations

import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier


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
