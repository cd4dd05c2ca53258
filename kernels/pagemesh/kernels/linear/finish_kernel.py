"""What becomes of a product's sums in Triton: scales, bias, activation, residual, and the rows of the norm behind it.

A norm between two products needs no kernel of its own. The product in front leaves x · weight and sums of x², in the
order of `sum_squares`, whoever computes them; the one behind scales its sums by 1 / √(mean x² + eps) of each row. So
nobody waits for a whole row.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from pagemesh.kernels.gated_activation.cuda import activate
from pagemesh.kernels.linear.weight_kernel import is_scaled_at_the_end
from pagemesh.kernels.rms_norm.cuda import RUN, scales_of, sum_squares

_RUN = tl.constexpr(RUN)
_MOST_SQUARES_AHEAD: Final = 2048
"""Of a tile that wait in registers until its sums are scaled."""


@triton.constexpr_function
def are_ahead(num_runs, num_tokens):
    """Whether a tile's squares are loaded before its sums are computed; those of large tiles have no registers."""
    return 0 < num_runs * num_tokens <= _MOST_SQUARES_AHEAD


@triton.constexpr_function
def width_of(num_runs):
    """Of a tile of so many squares of a row."""
    return 1 << (num_runs - 1).bit_length()


@triton.jit
def load_squares_ahead(squares, token, RUNS: tl.constexpr):
    """What `load_squares` gives, or the pointer to it if it is not read ahead."""
    found = squares
    if squares is not None and are_ahead(RUNS, token.shape[0]):
        found = load_squares(squares, token, RUNS)
    return found


@triton.jit
def load_squares(squares, token, RUNS: tl.constexpr):
    """Of the `squares` of `UnscaledRows` those of a tile's tokens: sums of squares, float32 [a power of two, BLOCK_T],
    zeros beyond the RUNS that there are; or the scales [BLOCK_T], if RUNS is 0."""
    if RUNS == 0:
        # As half of twice as many: a thread then loads one, where it would keep all that its sums need.
        half = tl.arange(0, 2)[:, None]
        found = tl.sum(
            tl.load(squares + (half + token[None, :]), mask=half == 0, other=0.0), axis=0
        )
    else:
        WIDTH: tl.constexpr = width_of(RUNS)
        run = tl.arange(0, WIDTH)[:, None]
        mask = None if WIDTH == RUNS else run < RUNS
        other = None if WIDTH == RUNS else 0.0
        found = tl.load(squares + token[None, :] * RUNS + run, mask=mask, other=other)
    return found


@triton.jit
def scale_sums(sums, up_sums, squares, token, num_inputs, eps, RUNS: tl.constexpr):
    """Sums [BLOCK_OUT, BLOCK_T] of rows that were not scaled; `squares` are of `load_squares_ahead`."""
    if squares is not None:
        scale = squares
        if not are_ahead(RUNS, token.shape[0]):
            scale = load_squares(squares, token, RUNS)
        if RUNS > 0:
            scale = scales_of(scale, num_inputs, eps)
        sums *= scale[None, :]
        up_sums *= scale[None, :]
    return sums, up_sums


@triton.jit
def finish(
    sums,
    up_sums,
    scales,
    row_scales,
    bias,
    residual,
    outputs,
    column,
    mask,
    up_offset,
    limit,
    alpha,
    FORM: tl.constexpr,
    GATE: tl.constexpr,
):
    """Bias, then gated activation or residual, rounded once into `outputs` [BLOCK_OUT, BLOCK_T]; what was written.

    Before it sums of codes are scaled, by `row_scales` [BLOCK_T] and the weight's own, if they are not yet.
    """
    if is_scaled_at_the_end(FORM):
        exists = column < up_offset
        scale = tl.load(scales + column, mask=exists, other=0.0)
        sums = sums.to(tl.float32) * (row_scales[None, :] * scale[:, None])
        if GATE is not None:
            scale = tl.load(scales + up_offset + column, mask=exists, other=0.0)
            up_sums = up_sums.to(tl.float32) * (row_scales[None, :] * scale[:, None])
    if bias is not None:
        exists = column < up_offset
        sums += tl.load(bias + column, mask=exists, other=0.0).to(tl.float32)[:, None]
        if GATE is not None:
            up_bias = tl.load(bias + up_offset + column, mask=exists, other=0.0)
            up_sums += up_bias.to(tl.float32)[:, None]
    if GATE is not None:
        sums = activate(sums, up_sums, limit, alpha, GATE)
    if residual is not None:
        sums += tl.load(residual, mask=mask, other=0.0).to(tl.float32)
    rounded = sums.to(outputs.dtype.element_ty)
    tl.store(outputs, rounded, mask=mask)
    return rounded


@triton.jit
def leave_for_norm(outputs, following, column, mask, num_tokens, num_outputs):
    """Write outputs [BLOCK_OUT, BLOCK_T], whole runs of each row, as `UnscaledRows`, if there is a norm behind them.

    `following` are the norm's weight, where its rows and their sums of squares go, which tile of outputs it is, and its
    first token.
    """
    weight, weighted, squares, tile, first = following
    if weight is not None:
        NUM: tl.constexpr = outputs.shape[0] // _RUN
        BLOCK_T: tl.constexpr = outputs.shape[1]
        token = first + tl.arange(0, BLOCK_T)
        factor = tl.load(weight + column, mask=column < num_outputs, other=0.0)[:, None]
        values = tl.where(mask, outputs.to(tl.float32), 0.0)
        weighted += token[None, :] * num_outputs + column[:, None]
        tl.store(weighted, (values * factor).to(weighted.dtype.element_ty), mask=mask)
        sums = sum_squares(tl.reshape(values, (NUM, _RUN, BLOCK_T)))
        run, runs = tile * NUM + tl.arange(0, NUM)[:, None], tl.cdiv(num_outputs, _RUN)
        exists = (run < runs) & (token < num_tokens)[None, :]
        tl.store(squares + token[None, :] * runs + run, sums, mask=exists)
