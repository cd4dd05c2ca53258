"""Paged attention in Triton: keys in tiles and segments at fixed places, sums in one fixed order.

A program computes rows, which are queries times the heads that share a kv head, over a run of
segments. A segment begins with nothing; what it sums up is merged into the total of those before it.
When several programs share the rows, the first merges its own run, the others leave their segments' sums
in memory, and the last one to arrive merges those, in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier

ITEM_FIELDS = tl.constexpr(11)
MERGE_FIELDS = tl.constexpr(3)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _nothing(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """What a sum over no keys is: the largest logit, the sum of weights, and of weighted values."""
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    return maximum, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)


@triton.jit
def _merge(maximum, total, weighted, other_maximum, other_total, other_weighted):
    """Add a segment's sums to those before it; one without visible keys changes nothing."""
    both = tl.maximum(maximum, other_maximum)
    reference = tl.where(both == float("-inf"), 0.0, both)
    old, new = tl.exp2(maximum - reference), tl.exp2(other_maximum - reference)
    other_weighted = other_weighted * new[:, None]
    weighted = tl.fma(weighted, tl.broadcast_to(old[:, None], weighted.shape), other_weighted)
    return both, total * old + other_total * new, weighted


@triton.jit
def _finish(maximum, total, weighted, sinks, value_scales, heads, kv_head):
    """The attention of rows whose segments are all merged; zeros for rows without a key."""
    if sinks is not None:
        sink = tl.load(sinks + heads).to(tl.float32) * LOG2_E
        nothing = tl.zeros_like(weighted)
        maximum, total, weighted = _merge(
            maximum, total, weighted, sink, tl.full(sink.shape, 1.0, tl.float32), nothing
        )
    factor = 1.0 / tl.where(total == 0.0, 1.0, total)
    if value_scales is not None:
        factor *= tl.load(value_scales + kv_head)
    return weighted * factor[:, None]


@triton.jit
def _kept_row(tile, item, merges, SEGMENT_TILES: tl.constexpr):
    """Where an item's sums go: those of the segment that begins with a tile, or all of them."""
    if tl.load(item + 9) < 0:
        row = tl.load(merges + tl.load(item + 10) * MERGE_FIELDS)
    else:
        num_before = (tile - tl.load(item + 7)) // SEGMENT_TILES
        row = tl.load(item + 9) + num_before * tl.load(item + 2)
    return row


@triton.jit
def _rows(item, GROUP: tl.constexpr, BLOCK_ROWS: tl.constexpr, first=0):
    """Of an item, from a row on: which rows there are, and each one's token and head."""
    lanes = first + tl.arange(0, BLOCK_ROWS)
    num_rows = tl.load(item + 2)
    rows = tl.load(item + 1) + tl.minimum(lanes, num_rows - 1)
    heads = tl.load(item + 5) * GROUP + rows % GROUP
    return lanes < num_rows, tl.load(item) + rows // GROUP, heads


@triton.jit
def _seen(positions, context, window, CAUSAL: tl.constexpr):
    """Where the keys begin and end that queries at these positions see."""
    begins = tl.zeros_like(positions)
    ends = positions + 1 if CAUSAL else begins + context
    if window is not None:
        begins = tl.maximum(positions - window + 1, 0)
        if not CAUSAL:
            ends = tl.minimum(ends, positions + window)
    return begins, ends


@triton.jit
def _cut(scores, item, first_key, window, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    """Scores of a tile, -inf for the keys that a row does not see.

    What rows see is looked up anew for the few tiles that need it: the others have the registers.
    """
    _, tokens, _ = _rows(item, GROUP, scores.shape[0])
    positions = tl.load(item + 3) - tl.load(item) + tokens
    begins, ends = _seen(positions, tl.load(item + 4), window, CAUSAL)
    keys = first_key + tl.arange(0, scores.shape[1])[None, :]
    return tl.where((keys >= begins[:, None]) & (keys < ends[:, None]), scores, float("-inf"))


@triton.jit
def _transform(scores, factor, soft_cap, slopes, item, first_key, GROUP: tl.constexpr):
    """Scores and the factor that makes them logits to the base of 2, capped and sloped where asked."""
    if soft_cap is not None:
        # cap · tanh(x), and tanh(x) = 1 - 2 / (exp(2 x) + 1).
        scores = (1.0 - 2.0 / (tl.exp2(scores * factor) + 1.0)) * soft_cap
        factor = 1.0
    if slopes is not None:
        _, tokens, heads = _rows(item, GROUP, scores.shape[0])
        positions = tl.load(item + 3) - tl.load(item) + tokens
        row_slopes = tl.load(slopes + heads).to(tl.float32) * LOG2_E
        columns = first_key + tl.arange(0, scores.shape[1])
        distances = (columns[None, :] - positions[:, None]).to(tl.float32)
        scores = scores * factor + row_slopes[:, None] * distances
        factor = 1.0
    return scores, factor


@triton.jit
def _weigh(maximum, total, scores, factor):
    """The largest logit and the sum of weights with a tile's, its weights, and what sums shrink by."""
    grown = tl.maximum(maximum, tl.max(scores, axis=1) * factor)
    reference = tl.where(grown == float("-inf"), 0.0, grown)
    weights = tl.exp2(tl.fma(scores, tl.zeros_like(scores) + factor, -reference[:, None]))
    correction = tl.exp2(maximum - reference)
    return grown, total * correction + tl.sum(weights, axis=1), weights, correction


@triton.jit
def _store(places, values, is_row, HEAD_DIM: tl.constexpr):
    """Rows from places [rows, 1] on, rounded to what lies there."""
    dims = tl.arange(0, values.shape[1])[None, :]
    mask = is_row[:, None] & (dims < HEAD_DIM)
    tl.store(places + dims, values.to(places.dtype.element_ty), mask=mask)


@triton.jit
def _keep(
    tile,
    item,
    merges,
    partials,
    statistics,
    maximum,
    total,
    weighted,
    SEGMENT_TILES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Leave sums of an item in memory, see `_kept_row`."""
    row = _kept_row(tile, item, merges, SEGMENT_TILES)
    lanes = tl.arange(0, weighted.shape[0])
    is_row = lanes < tl.load(item + 2)
    rows = row.to(tl.int64) + lanes
    _store(partials + (rows * HEAD_DIM)[:, None], weighted, is_row, HEAD_DIM)
    tl.store(statistics + 2 * rows, maximum, mask=is_row)
    tl.store(statistics + 2 * rows + 1, total, mask=is_row)


@triton.jit
def _kept(partials, statistics, rows, is_row, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Sums that were left in memory; nothing where there is no row.

    They are read past the first cache, which does not hear of other multiprocessors' writes.
    """
    dims = tl.arange(0, WIDTH)
    places = statistics + 2 * rows
    maximum = tl.load(places, mask=is_row, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(places + 1, mask=is_row, other=0.0, cache_modifier=".cg")
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    places = partials + (rows * HEAD_DIM)[:, None] + dims[None, :]
    weighted = tl.load(places, mask=mask, other=0.0, cache_modifier=".cg")
    return maximum, total, weighted


@triton.jit
def _merge_kept(
    item,
    merge,
    partials,
    statistics,
    output,
    sinks,
    value_scales,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MERGED_ROWS: tl.constexpr,
    MERGED_AT_ONCE: tl.constexpr,
):
    """The attention of an item's rows, from all sums that are in memory."""
    num_rows, num_sums = tl.load(item + 2), tl.load(merge + 1)
    kv_head = tl.load(item + 5)
    for first in tl.range(0, num_rows, MERGED_ROWS):
        is_row, tokens, heads = _rows(item, GROUP, MERGED_ROWS, first)
        rows = (tl.load(merge) + first).to(tl.int64) + tl.arange(0, MERGED_ROWS)
        maximum, total, weighted = _kept(partials, statistics, rows, is_row, HEAD_DIM, WIDTH)
        for number in tl.range(1, num_sums, MERGED_AT_ONCE):
            for offset in tl.static_range(MERGED_AT_ONCE):
                is_there = is_row & (number + offset < num_sums)
                others = rows + (number + offset) * num_rows
                other_maximum, other_total, other_weighted = _kept(
                    partials, statistics, others, is_there, HEAD_DIM, WIDTH
                )
                maximum, total, weighted = _merge(
                    maximum, total, weighted, other_maximum, other_total, other_weighted
                )
        result = _finish(maximum, total, weighted, sinks, value_scales, heads, kv_head)
        places = tokens.to(tl.int64) * (KV_HEADS * GROUP) + heads
        _store(output + (places * HEAD_DIM)[:, None], result, is_row, HEAD_DIM)


@triton.jit
def _arrive(
    item,
    merges,
    counters,
    partials,
    statistics,
    output,
    sinks,
    value_scales,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MERGED_ROWS: tl.constexpr,
    MERGED_AT_ONCE: tl.constexpr,
):
    """Count an item whose sums are in memory; the last one computes the attention of all of its rows.

    The barrier puts the writes of all threads in front of the counting, which releases them.
    """
    tl.debug_barrier()
    counter = counters + tl.load(item + 10)
    merge = merges + tl.load(item + 10) * MERGE_FIELDS
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == tl.load(merge + 2) - 1:
        tl.store(counter, 0)
        _merge_kept(
            item, merge, partials, statistics, output, sinks, value_scales,
            GROUP, KV_HEADS, HEAD_DIM, WIDTH, MERGED_ROWS, MERGED_AT_ONCE,
        )  # fmt: skip


@triton.jit
def attention_kernel(
    programs,  # int32 [programs + 1]: where each program's items begin
    items,  # int32 [items, ITEM_FIELDS]
    merges,  # int32 [merges, MERGE_FIELDS]
    counters,  # int32 [merges]: zeros before and after
    tables,  # int32: block tables behind each other
    query,  # [T, heads, HEAD_DIM], tokens strided
    query_stride,
    layer_kv,  # keys, and value_offset elements behind them values: [slots, KV_HEADS, HEAD_DIM]
    value_offset,
    output,  # [T, heads, HEAD_DIM]
    partials,  # float32 [partial rows, HEAD_DIM]
    statistics,  # float32 [partial rows, 2]: maximum and sum
    factor,  # scale · log2(e); with a cap, scale / cap · 2 log2(e)
    window,
    soft_cap,  # cap · log2(e)
    sinks,
    slopes,
    key_scales,
    value_scales,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    SEGMENT_TILES: tl.constexpr,
    CAUSAL: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    MERGED_ROWS: tl.constexpr,
    MERGED_AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The items of one program, one after the other."""
    wait_for_earlier(EARLY)
    number = tl.load(programs + tl.program_id(0))
    while number < tl.load(programs + tl.program_id(0) + 1):
        item = items + number * ITEM_FIELDS
        table = tables + tl.load(item + 6)
        begin_tile = tl.load(item + 7)

        dims = tl.arange(0, WIDTH)
        is_dim = dims < HEAD_DIM
        is_row, tokens, heads = _rows(item, GROUP, BLOCK_ROWS)
        kv_head = tl.load(item + 5)
        positions = tl.load(item + 3) - tl.load(item) + tokens
        places = (tokens.to(tl.int64) * query_stride + heads * HEAD_DIM)[:, None] + dims[None, :]
        queries = tl.load(query + places, mask=is_row[:, None] & is_dim, other=0.0).to(DOT)

        begins, ends = _seen(positions, tl.load(item + 4), window, CAUSAL)
        begin, last_begin = tl.min(begins, axis=0), tl.max(begins, axis=0)
        end, first_end = tl.max(ends, axis=0), tl.min(ends, axis=0)
        item_factor = factor
        if key_scales is not None:
            item_factor = factor * tl.load(key_scales + kv_head)

        while begin_tile < tl.load(item + 8):
            part_end = tl.load(item + 8)
            if tl.load(item + 9) >= 0:
                part_end = tl.minimum(part_end, begin_tile + SEGMENT_TILES)
            maximum, total, weighted = _nothing(BLOCK_ROWS, WIDTH)
            whole_maximum, whole_total, whole_weighted = maximum, total, weighted
            keys = begin_tile * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
            is_key = (keys >= begin) & (keys < end)
            blocks = tl.load(table + keys // BLOCK_SIZE, mask=is_key, other=0)
            for tile in tl.range(begin_tile, part_end):
                keys = tile * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
                is_key = (keys >= begin) & (keys < end)
                slots = (blocks * BLOCK_SIZE + keys % BLOCK_SIZE).to(tl.int64)
                elements = (slots * (KV_HEADS * HEAD_DIM))[:, None] + (kv_head * HEAD_DIM + dims)
                is_read = is_key[:, None] & is_dim[None, :]
                key_tile = tl.load(layer_kv + elements, mask=is_read, other=0.0).to(DOT)
                elements += value_offset
                value_tile = tl.load(layer_kv + elements, mask=is_read, other=0.0).to(DOT)
                keys += BLOCK_KEYS
                is_key = (keys >= begin) & (keys < end)
                blocks = tl.load(table + keys // BLOCK_SIZE, mask=is_key, other=0)

                scores = tl.dot(queries, tl.trans(key_tile), input_precision=PRECISION)
                begins_segment = (tile % SEGMENT_TILES == 0) & (tile > begin_tile)
                is_cut = (tile * BLOCK_KEYS < last_begin) | ((tile + 1) * BLOCK_KEYS > first_end)
                scores, base = _transform(
                    scores, item_factor, soft_cap, slopes, item, tile * BLOCK_KEYS, GROUP
                )
                if begins_segment | is_cut:
                    if begins_segment:
                        whole_maximum, whole_total, whole_weighted = _merge(
                            whole_maximum, whole_total, whole_weighted, maximum, total, weighted
                        )
                        maximum, total, weighted = _nothing(BLOCK_ROWS, WIDTH)
                    scores = _cut(scores, item, tile * BLOCK_KEYS, window, CAUSAL, GROUP)
                maximum, total, weights, correction = _weigh(maximum, total, scores, base)
                weighted = weighted * correction[:, None]
                weighted = tl.dot(weights.to(DOT), value_tile, weighted, input_precision=PRECISION)

            if tl.load(item + 9) < 0:
                maximum, total, weighted = _merge(
                    whole_maximum, whole_total, whole_weighted, maximum, total, weighted
                )
            if tl.load(item + 10) >= 0:
                _keep(
                    begin_tile, item, merges, partials, statistics, maximum, total, weighted,
                    SEGMENT_TILES, HEAD_DIM,
                )  # fmt: skip
            else:
                # Looked up anew, so that none of it is kept in registers meanwhile.
                is_done, done_tokens, done_heads = _rows(item, GROUP, BLOCK_ROWS)
                result = _finish(maximum, total, weighted, sinks, value_scales, done_heads, kv_head)
                done = done_tokens.to(tl.int64) * (KV_HEADS * GROUP) + done_heads
                _store(output + (done * HEAD_DIM)[:, None], result, is_done, HEAD_DIM)
            begin_tile = part_end

        if tl.load(item + 10) >= 0:
            _arrive(
                item, merges, counters, partials, statistics, output, sinks, value_scales,
                GROUP, KV_HEADS, HEAD_DIM, WIDTH, MERGED_ROWS, MERGED_AT_ONCE,
            )  # fmt: skip
        number += 1
