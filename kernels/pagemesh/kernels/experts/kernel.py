"""Experts in Triton: tokens are sorted on the device, and nothing is read back.

A pair is one choice of one token; pairs are numbered token by token. A tile is some pairs of one
expert, in the order of their numbers: how many there are of one expert is known to the device alone, so
there are programs for as many tiles as there could be, and those too many end at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.linear.finish_kernel import finish
from pagemesh.kernels.linear.kernel import (
    add_segments,
    leave_segment,
    segment_begin,
    segment_end,
    sum_products,
    sum_segments,
    tile_of,
)
from pagemesh.kernels.linear.weight_kernel import is_scaled_at_the_end


@triton.jit
def load_choices(chosen, pair, end, expert):
    """Which of the pairs chose which expert, as 0 or 1 [pairs, experts]."""
    exists = pair < end
    choice = tl.load(chosen + pair, mask=exists, other=0).to(tl.int32)
    return ((choice[:, None] == expert[None, :]) & exists[:, None]).to(tl.int32)


@triton.jit(do_not_specialize=["num_pairs"])
def count_pairs_kernel(
    chosen,
    counts,
    num_pairs,
    CHUNK: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """How often each expert is chosen by each run of CHUNK pairs: `counts` [chunks, BLOCK_EXPERTS]."""
    wait_for_earlier(EARLY)
    chunk = tl.program_id(0)
    expert = tl.arange(0, BLOCK_EXPERTS)
    end = tl.minimum((chunk + 1) * CHUNK, num_pairs)
    count = tl.zeros((BLOCK_EXPERTS,), tl.int32)
    for start in range(chunk * CHUNK, end, BLOCK_PAIRS):
        pair = start + tl.arange(0, BLOCK_PAIRS)
        count += tl.sum(load_choices(chosen, pair, end, expert), axis=0)
    tl.store(counts + chunk * BLOCK_EXPERTS + expert, count)


@triton.jit(do_not_specialize=["num_pairs", "num_chunks", "num_tiles"])
def sort_pairs_kernel(
    chosen,
    counts,
    order,
    tiles,
    num_pairs,
    num_chunks,
    num_tiles,
    CHUNK: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The `order` [pairs] and `tiles` [num_tiles, 3] of `ByExpert`. A program for each chunk."""
    wait_for_earlier(EARLY)
    chunk = tl.program_id(0)
    expert = tl.arange(0, BLOCK_EXPERTS)
    earlier = tl.zeros((BLOCK_EXPERTS,), tl.int32)
    total = tl.zeros((BLOCK_EXPERTS,), tl.int32)
    for start in range(0, num_chunks, BLOCK_CHUNKS):
        other = start + tl.arange(0, BLOCK_CHUNKS)
        place = counts + other[:, None] * BLOCK_EXPERTS + expert[None, :]
        found = tl.load(place, mask=(other < num_chunks)[:, None], other=0)
        total += tl.sum(found, axis=0)
        earlier += tl.sum(tl.where((other < chunk)[:, None], found, 0), axis=0)
    begin = tl.cumsum(total, axis=0) - total
    following = begin + earlier
    end = tl.minimum((chunk + 1) * CHUNK, num_pairs)
    for start in range(chunk * CHUNK, end, BLOCK_PAIRS):
        pair = start + tl.arange(0, BLOCK_PAIRS)
        choices = load_choices(chosen, pair, end, expert)
        ranks = tl.cumsum(choices, axis=0) - choices
        place = tl.sum(choices * (ranks + following[None, :]), axis=1)
        tl.store(order + place, pair, mask=pair < end)
        following += tl.sum(choices, axis=0)
    needed = (total + BLOCK_T - 1) // BLOCK_T
    tile_end = tl.cumsum(needed, axis=0)
    for start in range(chunk * BLOCK_PAIRS, num_tiles, num_chunks * BLOCK_PAIRS):
        tile = start + tl.arange(0, BLOCK_PAIRS)
        is_own = (tile[:, None] < tile_end[None, :]) & (
            tile[:, None] >= (tile_end - needed)[None, :]
        )
        own = is_own.to(tl.int32)
        within = tile[:, None] - (tile_end - needed)[None, :]
        first = tl.sum(own * (begin[None, :] + within * BLOCK_T), axis=1)
        place = tiles + tile * 3
        exists = tile < num_tiles
        tl.store(place, tl.sum(own * expert[None, :], axis=1), mask=exists)
        tl.store(place + 1, first, mask=exists)
        tl.store(place + 2, tl.sum(own * (begin + total)[None, :], axis=1), mask=exists)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def experts_kernel(
    inputs,
    input_stride,
    order,
    tiles,
    weight,
    row_size,
    scales,
    scale_units,
    zero_points,
    minimums,
    minimum_units,
    input_groups,
    table,
    row_scales,
    bias,
    output,
    partials,
    counters,
    num_pairs,
    num_tiles,
    num_outputs,
    num_inputs,
    limit,
    alpha,
    CHOICES: tl.constexpr,
    FORM: tl.constexpr,
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
    """Each pair's row of `inputs` [pairs / CHOICES, num_inputs] times its expert's part of `weight`
    [experts, num_outputs (with GATE twice that), row_size]: `output` [pairs, num_outputs]. As
    `linear_kernel` else."""
    wait_for_earlier(EARLY)
    program = tl.program_id(0)
    out_tile, token_tile = tile_of(program, tl.cdiv(num_outputs, BLOCK_OUT), num_tiles, GROUP)
    expert = tl.load(tiles + token_tile * 3)
    first = tl.load(tiles + token_tile * 3 + 1)
    last = tl.load(tiles + token_tile * 3 + 2)
    if first >= last:
        return
    IS_GATED: tl.constexpr = GATE is not None
    column = out_tile * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    slot = first + tl.arange(0, BLOCK_T)
    mask = (column < num_outputs)[:, None] & (slot < last)[None, :]
    pair = tl.load(order + tl.minimum(slot, last - 1))
    width = num_outputs * (2 if IS_GATED else 1)
    row = expert.to(tl.int64) * width + tl.minimum(column, num_outputs - 1)
    weights = weight + row * row_size
    ups = weight + (row + num_outputs) * row_size
    if input_groups is not None:
        input_groups += expert * num_inputs
    tables = (scales, scale_units, zero_points, minimums, minimum_units, input_groups, table)
    token = pair // CHOICES
    rows = (inputs + token.to(tl.int64) * input_stride, row_scales, num_pairs // CHOICES, token)
    if is_scaled_at_the_end(FORM):
        row_scales = tl.load(row_scales + token)
        scales += expert * width
    if bias is not None:
        bias += expert * width
    if IS_SPLIT:
        segment = tl.program_id(1)
        begin = segment_begin(segment, num_inputs, SEGMENTS)
        end = segment_end(segment, num_inputs, SEGMENTS)
        sums, up_sums = sum_products(
            weights, ups, row, tables, rows, begin, end, num_outputs, num_inputs,
            FORM, IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
        )  # fmt: skip
        size = num_pairs.to(tl.int64) * width
        places = (pair * width)[None, :] + column[:, None]
        counter = counters + program
        arrived = leave_segment(
            partials + segment * size, counter, places, mask, sums, up_sums, num_outputs, IS_GATED
        )
        if arrived == SEGMENTS - 1:
            sums, up_sums = add_segments(
                partials, counter, places, mask, size, num_outputs,
                SEGMENTS, IS_GATED, BLOCK_OUT, BLOCK_T,
            )  # fmt: skip
            outputs = output + (pair.to(tl.int64) * num_outputs)[None, :] + column[:, None]
            finish(
                sums, up_sums, scales, row_scales, bias, None, outputs, column, mask,
                num_outputs, limit, alpha, FORM, GATE,
            )  # fmt: skip
    else:
        sums, up_sums = sum_segments(
            weights, ups, row, tables, rows, num_outputs, num_inputs,
            SEGMENTS, FORM, IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
        )  # fmt: skip
        outputs = output + (pair.to(tl.int64) * num_outputs)[None, :] + column[:, None]
        finish(
            sums, up_sums, scales, row_scales, bias, None, outputs, column, mask,
            num_outputs, limit, alpha, FORM, GATE,
        )  # fmt: skip


@triton.jit
def sum_choices_kernel(
    outputs,
    weights,
    weight_stride,
    residual,
    residual_stride,
    total,
    size,
    CHOICES: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`total` [T, size] is the sum of a token's `outputs` [T, CHOICES, size] by `weights` [T, CHOICES], in
    the order of its choices, and of `residual` if there is one."""
    wait_for_earlier(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    sums = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(CHOICES):
        weight = tl.load(weights + token * weight_stride + choice).to(tl.float32)
        place = outputs + (token * CHOICES + choice) * size + column
        sums += weight * tl.load(place, mask=mask, other=0.0).to(tl.float32)
    if residual is not None:
        place = residual + token * residual_stride + column
        sums += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(total + token * size + column, sums.to(total.dtype.element_ty), mask=mask)
