"""Choosing tokens in Triton: rows by chunks first, then one program per row.

Sums are of whole numbers, so that they are the same in every order: a weight w <= 1 counts as
round(w · SCALE), where SCALE is a power of two that leaves room for a row of ones in 63 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

LEAST_KEY = tl.constexpr(-2139095041)
"""The key of -inf."""
LEAST_PACK = tl.constexpr(-9223372036854775807)
HIGHEST_SCORE = tl.constexpr(0x7FF0000000000000)
"""The key of a score of 0; scores are not positive, and keys have their order."""
LARGEST = tl.constexpr(3.4028234663852886e38)
"""Of float32."""


@triton.jit
def to_keys(values):
    """Float32 as int32 in the same order; -0.0 is 0.0, its equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def to_values(keys):
    """Float32 of int32 keys."""
    return tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys).to(tl.float32, bitcast=True)


@triton.jit
def entries_in(ids, numbers, end, first, last):
    """Token ids of entries, and which of them are before `end` and within a chunk."""
    found = tl.load(ids + numbers, mask=numbers < end, other=-1)
    return found, (found >= first) & (found < last)


@triton.jit
def edit_kernel(
    logits, row_stride, edited, size, edit_slots,
    penalties, entry_bounds, entry_ids, entry_values, mask_rows, masks, mask_stride,
    top_ks, chunk_packs, chunk_tops, group_keys, num_chunks,
    CHUNK: tl.constexpr, GROUPS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Edit a chunk of a row, if the row is edited, and note its maxima: of the logits as they were, of those
    to choose from with the lowest id that has it, and of each group of them."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = chunk * CHUNK
    last = tl.minimum(first + CHUNK, size)
    columns = first + tl.arange(0, CHUNK)
    inside = columns < size
    source = logits + row * row_stride + columns
    values = tl.load(source, mask=inside, other=float("-inf")).to(tl.float32)
    # A NaN is as bad as an infinity; a maximum passes over it.
    top = tl.max(tl.where(values != values, float("inf"), values), axis=0)
    tl.store(chunk_tops + row * num_chunks + chunk, top)
    slot = tl.load(edit_slots + row)
    if slot >= 0:
        target = edited + slot.to(tl.int64) * size
        tl.store(target + columns, values, mask=inside)
        bounds = entry_bounds + slot * 5
        biased, seen = tl.load(bounds), tl.load(bounds + 1)
        counted, forbidden, end = tl.load(bounds + 2), tl.load(bounds + 3), tl.load(bounds + 4)
        repetition = tl.load(penalties + slot * 3)
        frequency, presence = tl.load(penalties + slot * 3 + 1), tl.load(penalties + slot * 3 + 2)
        # Each kind names a token once, and sees what the kinds before it wrote.
        tl.debug_barrier()
        for start in range(biased, seen, ENTRIES):
            numbers = start + tl.arange(0, ENTRIES)
            ids, here = entries_in(entry_ids, numbers, seen, first, last)
            change = tl.load(entry_values + numbers, mask=here, other=0.0)
            value = tl.load(target + ids, mask=here, other=0.0)
            tl.store(target + ids, value + change, mask=here)
        tl.debug_barrier()
        for start in range(seen, counted, ENTRIES):
            numbers = start + tl.arange(0, ENTRIES)
            ids, here = entries_in(entry_ids, numbers, counted, first, last)
            value = tl.load(target + ids, mask=here, other=0.0)
            divided = tl.div_rn(value, tl.zeros_like(value) + repetition)
            value = tl.where(value > 0, divided, value * repetition)
            value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
            tl.store(target + ids, value, mask=here)
        tl.debug_barrier()
        for start in range(counted, forbidden, ENTRIES):
            numbers = start + tl.arange(0, ENTRIES)
            ids, here = entries_in(entry_ids, numbers, forbidden, first, last)
            count = tl.load(entry_values + numbers, mask=here, other=0.0)
            value = tl.load(target + ids, mask=here, other=0.0)
            tl.store(target + ids, value - frequency * count - presence, mask=here)
        tl.debug_barrier()
        for start in range(forbidden, end, ENTRIES):
            numbers = start + tl.arange(0, ENTRIES)
            ids, here = entries_in(entry_ids, numbers, end, first, last)
            tl.store(target + ids, tl.full([ENTRIES], float("-inf"), tl.float32), mask=here)
        tl.debug_barrier()
        values = tl.load(target + columns, mask=inside, other=float("-inf"))
        mask_row = tl.load(mask_rows + slot)
        if mask_row >= 0:
            place = masks + mask_row.to(tl.int64) * mask_stride + columns // 32
            words = tl.load(place, mask=inside, other=0)
            values = tl.where((words >> (columns % 32)) & 1 != 0, values, float("-inf"))
            tl.store(target + columns, values, mask=inside)
    keys = to_keys(values)
    packs = (keys.to(tl.int64) << 32) - columns
    tl.store(chunk_packs + row * num_chunks + chunk, tl.max(packs, axis=0))
    if tl.load(top_ks + row) > 0:
        tops = tl.max(tl.reshape(keys, [GROUPS, CHUNK // GROUPS]), axis=1)
        place = (row * num_chunks + chunk) * GROUPS + tl.arange(0, GROUPS)
        tl.store(group_keys + place, tops)


@triton.jit
def best_kernel(
    chunk_packs, chunk_tops, group_keys, num_chunks, num_groups, edit_slots, top_ks,
    token_ids, flags, bests, bounds, num_candidates,
    CHUNKS: tl.constexpr, ALL_GROUPS: tl.constexpr,
):  # fmt: skip
    """The likeliest token of a row, whether there is any, and a logit that the k-th highest reaches.

    Each group of logits has one that equals its maximum: the k-th highest of the maxima is such a bound.
    """
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    exists = chunks < num_chunks
    places = row * num_chunks + chunks
    pack = tl.max(tl.load(chunk_packs + places, mask=exists, other=LEAST_PACK), axis=0)
    top = tl.max(tl.load(chunk_tops + places, mask=exists, other=float("-inf")), axis=0)
    token_id = -pack & 0xFFFFFFFF
    best_key = (pack + token_id) >> 32
    best = to_values(best_key.to(tl.int32))
    is_edited = tl.load(edit_slots + row) >= 0
    flag = tl.where(tl.abs(best) <= LARGEST, 0, tl.where(is_edited, 2, 0))
    tl.store(flags + row, tl.where(tl.abs(top) <= LARGEST, flag, 1))
    tl.store(token_ids + row, token_id)
    tl.store(bests + row, best)
    tl.store(num_candidates + row, 0)
    low = tl.full([], LEAST_KEY, tl.int64)
    top_k = tl.load(top_ks + row)
    if (top_k > 0) & (top_k <= num_groups):
        groups = tl.arange(0, ALL_GROUPS)
        place = group_keys + row * num_groups + groups
        tops = tl.load(place, mask=groups < num_groups, other=LEAST_KEY).to(tl.int64)
        high = best_key
        while low < high:
            pivot = low + ((high - low + 1) >> 1)
            above = tops >= pivot
            if tl.sum(above.to(tl.int32), axis=0) >= top_k:
                low = tl.min(tl.where(above, tops, high), axis=0)
            else:
                high = tl.max(tl.where(above, low, tops), axis=0)
    tl.store(bounds + row, to_values(low.to(tl.int32)))


@triton.jit
def weigh(values, best, temperature, SCALE: tl.constexpr):
    """Scores and weights, float64, and the weights as whole numbers."""
    scores = (values.to(tl.float64) - best) / temperature
    weights = tl.exp(scores)
    return scores, weights, (weights * SCALE + 0.5).to(tl.int64)


@triton.jit
def load_values(logits, row_stride, edited, slot, row, columns, size):
    """Logits to choose from; -inf where a row has no column."""
    inside = columns < size
    if slot >= 0:
        copied = edited + slot.to(tl.int64) * size + columns
        values = tl.load(copied, mask=inside, other=float("-inf"))
    else:
        given = logits + row * row_stride + columns
        values = tl.load(given, mask=inside, other=float("-inf")).to(tl.float32)
    return values


@triton.jit
def weigh_kernel(
    logits, row_stride, edited, size, edit_slots, drawn_rows, flags, bests, bounds,
    temperatures, top_ks, top_ps, min_ps, chunk_sums, num_chunks,
    num_candidates, chunk_lists, candidate_weights, candidate_keys, candidate_ids,
    CHUNK: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """The sum of a chunk's weights, but for those that min-p cuts off, and a list of the tokens that top-k,
    min-p and top-p may keep.

    A chunk's candidates follow each other by ids; where they lie in the row's list is chance, and noted with
    their number in `chunk_lists` [drawn rows, chunks, 2].
    """
    number, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(drawn_rows + number).to(tl.int64)
    # All at once, before anything depends on one of them.
    flag, slot = tl.load(flags + row), tl.load(edit_slots + row)
    best, temperature = tl.load(bests + row).to(tl.float64), tl.load(temperatures + row)
    top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
    bound = tl.load(bounds + row).to(tl.float64)
    if flag == 0:
        columns = chunk * CHUNK + tl.arange(0, CHUNK)
        values = load_values(logits, row_stride, edited, slot, row, columns, size)
        scores, weights, shares = weigh(values, best, temperature, SCALE)
        is_cut = (top_k > 0) | (min_p > 0.0)
        if is_cut | (top_p < 1.0):
            # All tokens below the second bound together have less than what top-p leaves out.
            least = tl.where(is_cut, min_p, (1.0 - top_p) / (2.0 * size))
            kept = (shares > 0) & (weights >= least) & (scores >= (bound - best) / temperature)
            if is_cut:
                shares = tl.where(kept, shares, 0)
            counts = kept.to(tl.int32)
            count = tl.sum(counts, axis=0)
            here = chunk_lists + (number * num_chunks + chunk) * 2
            tl.store(here + 1, count)
            if count > 0:
                begin = tl.atomic_add(num_candidates + row, count, sem="relaxed")
                tl.store(here, begin)
                places = number * size + begin + tl.cumsum(counts, axis=0) - 1
                tl.store(candidate_weights + places, weights, mask=kept)
                tl.store(candidate_ids + places, columns, mask=kept)
                if top_k > 0:
                    # Scores, since a high temperature gives the same weight to different ones.
                    distances = tl.abs(scores).to(tl.int64, bitcast=True)
                    keys = (-distances + HIGHEST_SCORE).to(tl.float64, bitcast=True)
                    tl.store(candidate_keys + places, keys, mask=kept)
        tl.store(chunk_sums + number * num_chunks + chunk, tl.sum(shares, axis=0))
