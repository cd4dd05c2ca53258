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
    temperatures, top_ks, top_ps, min_ps,
    chunk_sums, num_chunks, num_candidates, candidate_weights, candidate_keys, candidate_ids,
    CHUNK: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """The sum of a chunk's weights, and a list of the tokens that top-k, min-p and top-p may keep.

    The list of a row has no order, since whoever reads it adds whole numbers.
    """
    number, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(drawn_rows + number).to(tl.int64)
    if tl.load(flags + row) == 0:
        columns = chunk * CHUNK + tl.arange(0, CHUNK)
        slot = tl.load(edit_slots + row)
        values = load_values(logits, row_stride, edited, slot, row, columns, size)
        best, temperature = tl.load(bests + row).to(tl.float64), tl.load(temperatures + row)
        scores, weights, shares = weigh(values, best, temperature, SCALE)
        tl.store(chunk_sums + number * num_chunks + chunk, tl.sum(shares, axis=0))
        top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
        is_cut = (top_k > 0) | (min_p > 0.0)
        if is_cut | (top_p < 1.0):
            # All tokens below the second bound together have less than what top-p leaves out.
            least = tl.where(is_cut, min_p, (1.0 - top_p) / (2.0 * size))
            bound = (tl.load(bounds + row).to(tl.float64) - best) / temperature
            kept = (shares > 0) & (weights >= least) & (scores >= bound)
            counts = kept.to(tl.int32)
            begin = tl.atomic_add(num_candidates + row, tl.sum(counts, axis=0), sem="relaxed")
            places = number * size + begin + tl.cumsum(counts, axis=0) - 1
            tl.store(candidate_weights + places, weights, mask=kept)
            tl.store(candidate_ids + places, columns, mask=kept)
            if top_k > 0:
                # Scores, since a high temperature gives the same weight to different ones.
                distances = tl.abs(scores).to(tl.int64, bitcast=True)
                tl.store(candidate_keys + places, -distances + HIGHEST_SCORE, mask=kept)


@triton.jit
def sum_of(weights, ids, count, low, last_id, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """Sum over a list's tokens that are not lighter than `low`, a weight's bits, nor behind `last_id`."""
    sums = tl.full([BLOCK], 0, tl.int64)
    for start in range(0, count, BLOCK):
        places = start + tl.arange(0, BLOCK)
        block = tl.load(weights + places, mask=places < count, other=0.0)
        token_ids = tl.load(ids + places, mask=places < count, other=0)
        kept = (block.to(tl.int64, bitcast=True) >= low) & (token_ids <= last_id)
        sums += tl.where(kept, (block * SCALE + 0.5).to(tl.int64), 0)
    return tl.sum(sums, axis=0)


@triton.jit
def threshold(
    numbers, count, low, high, reach,
    COUNTED: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The highest of a list's numbers at which it and those above it reach a count or a sum; its bits.

    Bits of floats that are not negative have their order. The range between two numbers of the list is
    halved until they are equal; the outcome is `low` where all together do not reach so far.
    """
    while low < high:
        pivot = low + ((high - low + 1) >> 1)
        sums = tl.full([BLOCK], 0, tl.int64)
        above = tl.full([BLOCK], 0, tl.int64) + high
        below = tl.full([BLOCK], 0, tl.int64) + low
        for start in range(0, count, BLOCK):
            places = start + tl.arange(0, BLOCK)
            block = tl.load(numbers + places, mask=places < count, other=0)
            keys = block.to(tl.int64, bitcast=True)
            is_above = keys >= pivot
            shares = is_above.to(tl.int64) if COUNTED else (block * SCALE + 0.5).to(tl.int64)
            sums += tl.where(is_above, shares, 0)
            above = tl.where(is_above, tl.minimum(above, keys), above)
            below = tl.where(is_above, below, tl.maximum(below, keys))
        if tl.sum(sums, axis=0) >= reach:
            low = tl.min(above, axis=0)
        else:
            high = tl.max(below, axis=0)
    return low


@triton.jit
def drop_below(weights, keys, count, low, BLOCK: tl.constexpr):
    """Take their weights from a list's tokens whose keys are below `low`."""
    for start in range(0, count, BLOCK):
        places = start + tl.arange(0, BLOCK)
        dropped = tl.load(keys + places, mask=places < count, other=low) < low
        tl.store(weights + places, tl.full([BLOCK], 0.0, tl.float64), mask=dropped)
    tl.debug_barrier()


@triton.jit
def random_bits(seed, position):
    """The 53 bits of a draw, in the upper bits of a uint64: Philox4x32-10 of (seed, position)."""
    lower, upper = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
    zero = lower * 0
    first, second, _, _ = tl.philox(seed, lower, upper, zero, zero)
    return ((first.to(tl.uint64) << 32) | second.to(tl.uint64)) >> 11 << 11


@triton.jit
def draw_kernel(
    logits, row_stride, edited, size, edit_slots, drawn_rows, flags, bests,
    temperatures, top_ks, top_ps, min_ps, seeds, positions,
    chunk_sums, num_chunks, num_candidates, candidate_weights, candidate_keys, candidate_ids,
    token_ids,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """The first token of a row, by ids, at which the sum of the kept weights exceeds draw · whole sum."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(drawn_rows + number).to(tl.int64)
    if tl.load(flags + row) == 0:
        draw = random_bits(tl.load(seeds + row), tl.load(positions + row))
        chunks = tl.arange(0, CHUNKS)
        place = chunk_sums + number * num_chunks + chunks
        sums = tl.load(place, mask=chunks < num_chunks, other=0)
        total = tl.sum(sums, axis=0)
        top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
        is_cut = (top_k > 0) | (min_p > 0.0)
        if is_cut | (top_p < 1.0):
            count = tl.load(num_candidates + row)
            weights, ids = candidate_weights + number * size, candidate_ids + number * size
            low = tl.full([], 0, tl.int64)
            high = tl.full([], 1.0, tl.float64).to(tl.int64, bitcast=True)
            if top_k > 0:
                keys = candidate_keys + number * size
                highest = low + HIGHEST_SCORE
                lowest = threshold(keys, count, low, highest, top_k, True, SCALE, BLOCK)
                drop_below(weights, keys, count, lowest, BLOCK)
            if top_p < 1.0:
                if is_cut:
                    total = sum_of(weights, ids, count, low, size, SCALE, BLOCK)
                reach = tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)
                low = threshold(weights, count, low, high, reach, False, SCALE, BLOCK)
            total = sum_of(weights, ids, count, low, size, SCALE, BLOCK)
            target = tl.umulhi(draw, total.to(tl.uint64)).to(tl.int64)
            first = tl.full([], 0, tl.int32)
            last = first + (size - 1)
            while first < last:
                middle = (first + last) >> 1
                if sum_of(weights, ids, count, low, middle, SCALE, BLOCK) > target:
                    last = middle
                else:
                    first = middle + 1
            tl.store(token_ids + row, first.to(tl.int64))
        else:
            target = tl.umulhi(draw, total.to(tl.uint64)).to(tl.int64)
            chunk = tl.sum((tl.cumsum(sums, axis=0) <= target).to(tl.int32), axis=0)
            before = tl.sum(tl.where(chunks < chunk, sums, 0), axis=0)
            columns = chunk * CHUNK + tl.arange(0, CHUNK)
            slot = tl.load(edit_slots + row)
            values = load_values(logits, row_stride, edited, slot, row, columns, size)
            best, temperature = tl.load(bests + row).to(tl.float64), tl.load(temperatures + row)
            _, _, shares = weigh(values, best, temperature, SCALE)
            is_passed = before + tl.cumsum(shares, axis=0) <= target
            token_id = chunk * CHUNK + tl.sum(is_passed.to(tl.int32), axis=0)
            tl.store(token_ids + row, token_id.to(tl.int64))
