"""Matmuls with a weight in Triton, the same bits for a token in any company.

The weight's rows are the first operand of every matrix instruction and the tokens its columns: however
few tokens there are, the instruction is of the same kind, 16 inputs after 16 are added to a sum, and no sum
knows how many others there are. Inputs are cut into segments whose sums are added one after another,
whether programs of their own computed them or one program all of them.

Floats of 8 bits are multiplied 128 inputs at a time: tensor cores keep fewer digits of such sums than a float32 has
(https://arxiv.org/abs/2412.19437, 3.3.2), so each begins at zero and is added to a float32 outside of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagemesh.kernels.early_start import read_ahead, wait_for_earlier
from pagemesh.kernels.linear.finish_kernel import (
    finish,
    leave_for_norm,
    load_squares_ahead,
    scale_sums,
)
from pagemesh.kernels.linear.weight_kernel import (
    codes_before,
    is_fp8,
    is_scaled_at_the_end,
    is_scaled_by_runs,
    load_run,
    load_tile,
)

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


@triton.constexpr_function
def sum_type(form):
    """The type of sums of products."""
    return tl.int32 if form is not None and form.codes == "w8a8" else tl.float32


@triton.jit
def load_run_scales(scales, row, start, num_inputs, FORM: tl.constexpr, BLOCK_OUT: tl.constexpr):
    """What products of a weight's rows from an input on are scaled with, float32 [BLOCK_OUT, 1]; 1 if not by runs."""
    if is_scaled_by_runs(FORM):
        runs = tl.cdiv(num_inputs, FORM.group) if FORM.group else 1
        run = start // FORM.group if FORM.group else 0
        scale = tl.load(scales + row * runs + run)[:, None]
    else:
        scale = tl.full((BLOCK_OUT, 1), 1.0, tl.float32)
    return scale


@triton.jit
def load_token_scales(rows, start, FORM: tl.constexpr, BLOCK_T: tl.constexpr):
    """The same of the rows of tokens, [1, BLOCK_T]."""
    if is_scaled_by_runs(FORM):
        _, scales, num_rows, token = rows
        run = start // FORM.row_group if FORM.row_group else 0
        # As half of twice as many: a thread then loads one, where it would load all that its sums need.
        half = tl.arange(0, 2)[:, None]
        place = scales + run * num_rows + (half + token[None, :])
        scale = tl.sum(tl.load(place, mask=half == 0, other=0.0), axis=0)[None, :]
    else:
        scale = tl.full((1, BLOCK_T), 1.0, tl.float32)
    return scale


@triton.jit
def add_product(sums, tile, tokens, scale, token_scale, FORM: tl.constexpr, DOT_TYPE: tl.constexpr):
    """`sums` [BLOCK_OUT, BLOCK_T] and the product of a tile [BLOCK_OUT, BLOCK_K], `scale` [BLOCK_OUT, 1], with tokens
    [BLOCK_K, BLOCK_T], `token_scale` [1, BLOCK_T]."""
    if is_fp8(FORM):
        tl.static_assert(tile.shape[1] == 128)
        # Told how many inputs may be added up at once, the compiler does not add to `sums` in the tensor cores.
        part = tl.dot(tile, tokens, max_num_imprecise_acc=128, out_dtype=tl.float32)
        if is_scaled_by_runs(FORM):
            sums = tl.fma(part * scale, tl.broadcast_to(token_scale, sums.shape), sums)
        else:
            sums += part
    else:
        sums = tl.dot(tile.to(DOT_TYPE), tokens, sums, input_precision="ieee", out_dtype=sums.dtype)
    return sums


@triton.jit
def sum_products(
    weights,
    ups,
    row,
    tables,
    rows,
    begin,
    end,
    num_outputs,
    num_inputs,
    FORM: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sums over the inputs from `begin` to `end`, float32, or int32 of whole numbers, [BLOCK_OUT, BLOCK_T]: with the
    weight, and with that of the ups where there are gates.

    `weights` and `ups` [BLOCK_OUT] point to rows of weights, of which `row` are the numbers, those of the ups by
    `num_outputs` more. `rows` are pointers [BLOCK_T] to rows of tokens, the scales of all rows, how many rows that
    are, and the numbers of these rows [BLOCK_T]. `tables` are those of `load_tile`. IS_WHOLE: BLOCK_K divides
    `num_inputs`.
    """
    inputs, _, _, _ = rows
    scales = tables[0]
    TYPE: tl.constexpr = inputs.dtype.element_ty
    SUM_TYPE: tl.constexpr = sum_type(FORM)
    sums = tl.zeros((BLOCK_OUT, BLOCK_T), SUM_TYPE)
    up_sums = tl.zeros((BLOCK_OUT, BLOCK_T), SUM_TYPE)
    for start in range(begin, end, BLOCK_K):
        tokens = load_run(inputs, start, num_inputs, IS_WHOLE, BLOCK_K)
        tokens = tl.trans(tokens.to(DOT_TYPE))
        tile = load_tile(
            weights, row, tables, start, num_inputs, TYPE, FORM, IS_WHOLE, BLOCK_OUT, BLOCK_K
        )
        token_scale = load_token_scales(rows, start, FORM, BLOCK_T)
        scale = load_run_scales(scales, row, start, num_inputs, FORM, BLOCK_OUT)
        sums = add_product(sums, tile, tokens, scale, token_scale, FORM, DOT_TYPE)
        if IS_GATED:
            tile = load_tile(
                ups, row + num_outputs, tables, start, num_inputs, TYPE, FORM, IS_WHOLE,
                BLOCK_OUT, BLOCK_K,
            )  # fmt: skip
            scale = load_run_scales(scales, row + num_outputs, start, num_inputs, FORM, BLOCK_OUT)
            up_sums = add_product(up_sums, tile, tokens, scale, token_scale, FORM, DOT_TYPE)
    return sums, up_sums


@triton.jit
def sum_segments(
    weights,
    ups,
    row,
    tables,
    rows,
    num_outputs,
    num_inputs,
    SEGMENTS: tl.constexpr,
    FORM: tl.constexpr,
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
            weights, ups, row, tables, rows, 0, num_inputs, num_outputs, num_inputs,
            FORM, IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
        )  # fmt: skip
    else:
        SUM_TYPE: tl.constexpr = sum_type(FORM)
        sums = tl.zeros((BLOCK_OUT, BLOCK_T), SUM_TYPE)
        up_sums = tl.zeros((BLOCK_OUT, BLOCK_T), SUM_TYPE)
        for segment in range(SEGMENTS):
            begin = segment_begin(segment, num_inputs, SEGMENTS)
            end = segment_end(segment, num_inputs, SEGMENTS)
            more, more_ups = sum_products(
                weights, ups, row, tables, rows, begin, end, num_outputs, num_inputs,
                FORM, IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
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
    sums = tl.zeros((BLOCK_OUT, BLOCK_T), partials.dtype.element_ty)
    up_sums = tl.zeros((BLOCK_OUT, BLOCK_T), partials.dtype.element_ty)
    for segment in range(SEGMENTS):
        found = partials + segment * segment_size + places
        # Past the first cache, which does not hear of other multiprocessors' writes.
        sums += tl.load(found, mask=mask, other=0, cache_modifier=".cg")
        if IS_GATED:
            up_sums += tl.load(found + up_offset, mask=mask, other=0, cache_modifier=".cg")
    return sums, up_sums


@triton.jit(do_not_specialize=["num_tokens"])
def linear_kernel(
    inputs,
    input_stride,
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
    squares,
    bias,
    residual,
    residual_stride,
    output,
    norm_weight,
    weighted,
    output_squares,
    partials,
    counters,
    num_tokens,
    num_outputs,
    num_inputs,
    eps,
    limit,
    alpha,
    FORM: tl.constexpr,
    GATE: tl.constexpr,
    RUNS: tl.constexpr,
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
    """`inputs` [T, num_inputs]; `weight` [num_outputs, row_size], with GATE another num_outputs rows of ups, is dense,
    or what FORM says, with the tables of `load_tile`; `output` [T, num_outputs] lies densely. Programs: tiles, and
    segments if IS_SPLIT; `partials` is then of the sums' type, [SEGMENTS, T, rows of the weight], `counters` [tiles]
    are zeros before and after. `row_scales` [runs, T] are those of rows that are codes; `squares` those of rows that
    are to be scaled, see `load_squares`. With a `norm_weight` the output is also left as `UnscaledRows`."""
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
    tables = (scales, scale_units, zero_points, minimums, minimum_units, input_groups, table)
    weights = weight + row * row_size
    ups = weight + (row + num_outputs) * row_size
    begin = 0
    if IS_SPLIT:
        begin = segment_begin(tl.program_id(1), num_inputs, SEGMENTS)
    if BLOCK_T <= 64:
        ahead = codes_before(begin, FORM)
        read_ahead(weights, ahead, row_size, AHEAD, EARLY)
        if IS_GATED:
            read_ahead(ups, ahead, row_size, AHEAD, EARLY)
    wait_for_earlier(EARLY)
    token = tl.minimum(token, num_tokens - 1)
    rows = (inputs + token.to(tl.int64) * input_stride, row_scales, num_tokens, token)
    squares = load_squares_ahead(squares, token, RUNS)
    if is_scaled_at_the_end(FORM):
        row_scales = tl.load(row_scales + token)
    # Where the tile begins takes 64 bits; places within it do with 32, which spares registers.
    first = (token_tile * BLOCK_T).to(tl.int64)
    shift = out_tile * BLOCK_OUT
    down, right = tl.arange(0, BLOCK_T)[None, :], tl.arange(0, BLOCK_OUT)[:, None]
    outputs = output + (first * num_outputs + shift) + (down * num_outputs + right)
    following = (norm_weight, weighted, output_squares, out_tile, first)
    if residual is not None:
        residual += first * residual_stride + shift
        residual += down * residual_stride + right
    if IS_SPLIT:
        segment = tl.program_id(1)
        end = segment_end(segment, num_inputs, SEGMENTS)
        sums, up_sums = sum_products(
            weights, ups, row, tables, rows, begin, end, num_outputs, num_inputs,
            FORM, IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
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
            sums, up_sums = scale_sums(sums, up_sums, squares, token, num_inputs, eps, RUNS)
            written = finish(
                sums, up_sums, scales, row_scales, bias, residual, outputs, column, mask,
                num_outputs, limit, alpha, FORM, GATE,
            )  # fmt: skip
            leave_for_norm(written, following, column, mask, num_tokens, num_outputs)
    else:
        sums, up_sums = sum_segments(
            weights, ups, row, tables, rows, num_outputs, num_inputs,
            SEGMENTS, FORM, IS_GATED, IS_WHOLE, DOT_TYPE, BLOCK_OUT, BLOCK_T, BLOCK_K,
        )  # fmt: skip
        sums, up_sums = scale_sums(sums, up_sums, squares, token, num_inputs, eps, RUNS)
        written = finish(
            sums, up_sums, scales, row_scales, bias, residual, outputs, column, mask,
            num_outputs, limit, alpha, FORM, GATE,
        )  # fmt: skip
        leave_for_norm(written, following, column, mask, num_tokens, num_outputs)
