"""Matmuls with a weight in Triton, the same bits for a token in any company.

The weight's rows are the first operand of every matrix instruction and the tokens its columns: however
few tokens there are, the instruction is of the same kind, 16 inputs after 16 are added to a sum, and no sum
knows how many others there are. Inputs are cut into segments whose sums are added one after another,
whether programs of their own computed them or one program all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagemesh.kernels.early_start import read_ahead, wait_for_earlier
from pagemesh.kernels.gated_activation.cuda import activate

AHEAD = tl.constexpr(4)
"""Lines of the cache that are read ahead of each row: about what a program's first loads ask for."""


@triton.jit
def tile_of(program, num_out_tiles, num_token_tiles, GROUP: tl.constexpr):
    """Tile of outputs and tile of tokens of a program: such that programs that run at the same time
    read few different ones."""
    first = program // (GROUP * num_token_tiles) * GROUP
    height = tl.minimum(num_out_tiles - first, GROUP)
    within = program % (GROUP * num_token_tiles)
    return first + within % height, within // height


@triton.jit
def segment_begin(segment, num_inputs, SEGMENTS: tl.constexpr):
    """First input of a segment: whole runs of 128, shared out evenly."""
    return segment * tl.cdiv(num_inputs, 128) // SEGMENTS * 128


@triton.jit
def segment_end(segment, num_inputs, SEGMENTS: tl.constexpr):
    """Where it ends; the last one with the inputs."""
    return tl.minimum(segment_begin(segment + 1, num_inputs, SEGMENTS), num_inputs)


@triton.jit
def sum_products(
    weights,
    ups,
    inputs,
    begin,
    end,
    num_inputs,
    IS_GATED: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sums over the inputs from `begin` to `end`, float32 [BLOCK_OUT, BLOCK_T]: with the weight, and
    with that of the ups where there are gates.

    `weights` and `ups` [BLOCK_OUT] point to rows of weights, `inputs` [BLOCK_T] to those of tokens.
    IS_WHOLE: BLOCK_K divides `num_inputs`.
    """
    sums = tl.zeros((BLOCK_OUT, BLOCK_T), tl.float32)
    up_sums = tl.zeros((BLOCK_OUT, BLOCK_T), tl.float32)
    for start in range(begin, end, BLOCK_K):
        column = start + tl.arange(0, BLOCK_K)
        mask = None if IS_WHOLE else (column < num_inputs)[None, :]
        other = None if IS_WHOLE else 0.0
        tokens = tl.load(inputs[:, None] + column[None, :], mask=mask, other=other)
        tokens = tl.trans(tokens.to(DOT_TYPE))
        tile = tl.load(weights[:, None] + column[None, :], mask=mask, other=other).to(DOT_TYPE)
        sums = tl.dot(tile, tokens, sums, input_precision="ieee")
        if IS_GATED:
            tile = tl.load(ups[:, None] + column[None, :], mask=mask, other=other).to(DOT_TYPE)
            up_sums = tl.dot(tile, tokens, up_sums, input_precision="ieee")
    return sums, up_sums


@triton.jit
def sum_segments(
    weights,
    ups,
    inputs,
    num_inputs,
    SEGMENTS: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`sum_products` over all inputs, segment by segment."""
    if SEGMENTS == 1:
        sums, up_sums = sum_products(
            weights, ups, inputs, 0, num_inputs, num_inputs,
            IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
        )  # fmt: skip
    else:
        sums = tl.zeros((BLOCK_OUT, BLOCK_T), tl.float32)
        up_sums = tl.zeros((BLOCK_OUT, BLOCK_T), tl.float32)
        for segment in range(SEGMENTS):
            begin = segment_begin(segment, num_inputs, SEGMENTS)
            end = segment_end(segment, num_inputs, SEGMENTS)
            more, more_ups = sum_products(
                weights, ups, inputs, begin, end, num_inputs,
                IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
            )  # fmt: skip
            sums += more
            if IS_GATED:
                up_sums += more_ups
    return sums, up_sums


@triton.jit
def leave_segment(
    partials, counter, places, mask, sums, up_sums, up_offset, IS_GATED: tl.constexpr
):
    """Write a segment's sums to where others find them; how many segments had arrived before.

    The barrier puts the writes of all threads in front of the counting, which releases them.
    """
    tl.store(partials + places, sums, mask=mask)
    if IS_GATED:
        tl.store(partials + places + up_offset, up_sums, mask=mask)
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")


@triton.jit
def add_segments(
    partials,
    counter,
    places,
    mask,
    segment_size,
    up_offset,
    SEGMENTS: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """The sums that `sum_segments` gives, from all that was left; the counter is ready for another use.

    `places` [BLOCK_OUT, BLOCK_T] are those in the first segment.
    """
    tl.store(counter, 0)
    sums = tl.zeros((BLOCK_OUT, BLOCK_T), tl.float32)
    up_sums = tl.zeros((BLOCK_OUT, BLOCK_T), tl.float32)
    for segment in range(SEGMENTS):
        found = partials + segment * segment_size + places
        # Past the first cache, which does not hear of other multiprocessors' writes.
        sums += tl.load(found, mask=mask, other=0.0, cache_modifier=".cg")
        if IS_GATED:
            up_sums += tl.load(found + up_offset, mask=mask, other=0.0, cache_modifier=".cg")
    return sums, up_sums


@triton.jit
def finish(
    sums,
    up_sums,
    bias,
    residual,
    outputs,
    column,
    mask,
    up_offset,
    limit,
    alpha,
    GATE: tl.constexpr,
):
    """Bias, then gated activation or residual, rounded once into `outputs` [BLOCK_OUT, BLOCK_T]."""
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
    tl.store(outputs, sums.to(outputs.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def linear_kernel(
    inputs,
    input_stride,
    weight,
    bias,
    residual,
    residual_stride,
    output,
    partials,
    counters,
    num_tokens,
    num_outputs,
    num_inputs,
    limit,
    alpha,
    GATE: tl.constexpr,
    SEGMENTS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`inputs` [T, num_inputs]; `weight` [num_outputs, num_inputs], with GATE another num_outputs rows of
    ups; `output` [T, num_outputs] lies densely. Programs: tiles, and segments if IS_SPLIT; `partials` is
    then float32 [SEGMENTS, T, rows of the weight], `counters` [tiles] are zeros before and after."""
    tile = tl.program_id(0)
    out_tile, token_tile = tile_of(
        tile, tl.cdiv(num_outputs, BLOCK_OUT), tl.cdiv(num_tokens, BLOCK_T), GROUP
    )
    IS_GATED: tl.constexpr = GATE is not None
    column = out_tile * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    token = token_tile * BLOCK_T + tl.arange(0, BLOCK_T)
    mask = (column < num_outputs)[:, None] & (token < num_tokens)[None, :]
    # Rows beyond the last one are that one again: nothing is masked, and nobody reads their sums.
    row = tl.minimum(column, num_outputs - 1).to(tl.int64)
    weights = weight + row * num_inputs
    ups = weight + (row + num_outputs) * num_inputs
    begin = 0
    if IS_SPLIT:
        begin = segment_begin(tl.program_id(1), num_inputs, SEGMENTS)
    if BLOCK_T <= 64:
        read_ahead(weights, begin, num_inputs, AHEAD, EARLY)
        if IS_GATED:
            read_ahead(ups, begin, num_inputs, AHEAD, EARLY)
    wait_for_earlier(EARLY)
    rows = inputs + tl.minimum(token, num_tokens - 1).to(tl.int64) * input_stride
    # Where the tile begins takes 64 bits; places within it do with 32, which spares registers.
    first = (token_tile * BLOCK_T).to(tl.int64)
    shift = out_tile * BLOCK_OUT
    down, right = tl.arange(0, BLOCK_T)[None, :], tl.arange(0, BLOCK_OUT)[:, None]
    outputs = output + (first * num_outputs + shift) + (down * num_outputs + right)
    if residual is not None:
        residual += first * residual_stride + shift
        residual += down * residual_stride + right
    if IS_SPLIT:
        segment = tl.program_id(1)
        end = segment_end(segment, num_inputs, SEGMENTS)
        sums, up_sums = sum_products(
            weights, ups, rows, begin, end, num_inputs,
            IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
        )  # fmt: skip
        width = num_outputs * (2 if IS_GATED else 1)
        size = num_tokens.to(tl.int64) * width
        places = down * width + right
        partials += first * width + shift
        counter = counters + tile
        arrived = leave_segment(
            partials + segment * size, counter, places, mask, sums, up_sums, num_outputs, IS_GATED
        )
        if arrived == SEGMENTS - 1:
            sums, up_sums = add_segments(
                partials, counter, places, mask, size, num_outputs,
                SEGMENTS, IS_GATED, BLOCK_OUT, BLOCK_T,
            )  # fmt: skip
            finish(
                sums, up_sums, bias, residual, outputs, column, mask, num_outputs,
                limit, alpha, GATE,
            )  # fmt: skip
    else:
        sums, up_sums = sum_segments(
            weights, ups, rows, num_inputs,
            SEGMENTS, IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
        )  # fmt: skip
        finish(
            sums, up_sums, bias, residual, outputs, column, mask, num_outputs, limit, alpha, GATE
        )  # fmt: skip
