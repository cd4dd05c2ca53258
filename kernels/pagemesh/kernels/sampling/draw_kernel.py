"""Drawing a token in Triton: one program per row, over the list of candidates that `weigh_kernel` left.

Bits of floats that are not negative have the order of the floats: numbers of a list are compared as bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagemesh.kernels.sampling.kernel import HIGHEST_SCORE, load_values, weigh


@triton.jit
def to_shares(weights, SCALE: tl.constexpr):
    """Weights as whole numbers."""
    return (weights * SCALE + 0.5).to(tl.int64)


@triton.jit
def threshold_of_few(bits, shares, low, high, reach):
    """The highest of some numbers at which its share and those of the ones above it reach a sum; its bits.

    The range between two of the numbers is halved until they are equal; the outcome is `low` where all
    together do not reach so far.
    """
    while low < high:
        pivot = low + ((high - low + 1) >> 1)
        is_above = bits >= pivot
        if tl.sum(tl.where(is_above, shares, 0), axis=0) >= reach:
            low = tl.min(tl.where(is_above, bits, high), axis=0)
        else:
            high = tl.max(tl.where(is_above, low, bits), axis=0)
    return low


@triton.jit
def copy_between(numbers, count, copies, low, high, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """Copy a list's numbers from `low` to `high`, perhaps to its own beginning; the sum of the shares of
    those above."""
    sums = tl.full([BLOCK], 0, tl.int64)
    end = tl.full([], 0, tl.int32)
    for start in range(0, count, BLOCK):
        places = start + tl.arange(0, BLOCK)
        block = tl.load(numbers + places, mask=places < count, other=0.0)
        bits = block.to(tl.int64, bitcast=True)
        sums += tl.where(bits > high, to_shares(block, SCALE), 0)
        kept = (bits >= low) & (bits <= high) & (places < count)
        ones = kept.to(tl.int32)
        tl.store(copies + end + tl.cumsum(ones, axis=0) - 1, block, mask=kept)
        end += tl.sum(ones, axis=0)
    tl.debug_barrier()
    return tl.sum(sums, axis=0)


@triton.jit
def threshold_of_many(
    numbers, count, spare, low, high, reach,
    SCALE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`threshold_of_few` of a list. Without `spare` each share is 1; else they are those of the numbers, and
    of these the ones that are still in question are copied there whenever they have become few."""
    COUNTED: tl.constexpr = spare is None
    while (low < high) & (count > BLOCK):
        pivot = low + ((high - low + 1) >> 1)
        sums = tl.full([BLOCK], 0, tl.int64)
        above = tl.full([BLOCK], 0, tl.int64) + high
        below = tl.full([BLOCK], 0, tl.int64) + low
        num_above, num_below = tl.full([BLOCK], 0, tl.int32), tl.full([BLOCK], 0, tl.int32)
        for start in tl.range(0, count, BLOCK, num_stages=STAGES):
            places = start + tl.arange(0, BLOCK)
            block = tl.load(numbers + places, mask=places < count, other=0.0)
            bits = block.to(tl.int64, bitcast=True)
            is_above = bits >= pivot
            shares = is_above.to(tl.int64) if COUNTED else to_shares(block, SCALE)
            sums += tl.where(is_above, shares, 0)
            above = tl.where(is_above, tl.minimum(above, bits), above)
            below = tl.where(is_above, below, tl.maximum(below, bits))
            if not COUNTED:
                num_above += (is_above & (bits <= high)).to(tl.int32)
                num_below += ((bits >= low) & (bits < pivot)).to(tl.int32)
        if tl.sum(sums, axis=0) >= reach:
            low = tl.min(above, axis=0)
            left = tl.sum(num_above, axis=0)
        else:
            high = tl.max(below, axis=0)
            left = tl.sum(num_below, axis=0)
        if not COUNTED:  # noqa: SIM102 - one is the compiler's, the other the device's
            if (low < high) & (left <= count // 4):
                reach -= copy_between(numbers, count, spare, low, high, SCALE, BLOCK)
                numbers = spare
                count = left
    if not COUNTED:
        places = tl.arange(0, BLOCK)
        block = tl.load(numbers + places, mask=places < count, other=0.0)
        shares = to_shares(block, SCALE)
        low = threshold_of_few(block.to(tl.int64, bitcast=True), shares, low, high, reach)
    return low


@triton.jit
def drop_below(
    weights, keys, count, low,
    SCALE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take their weights from a list's tokens whose keys are below `low`; the sum of the others'."""
    sums = tl.full([BLOCK], 0, tl.int64)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        places = start + tl.arange(0, BLOCK)
        inside = places < count
        bits = tl.load(keys + places, mask=inside, other=0.0).to(tl.int64, bitcast=True)
        block = tl.load(weights + places, mask=inside, other=0.0)
        sums += tl.where(bits >= low, to_shares(block, SCALE), 0)
        tl.store(weights + places, tl.full([BLOCK], 0.0, tl.float64), mask=inside & (bits < low))
    tl.debug_barrier()
    return tl.sum(sums, axis=0)


@triton.jit
def sum_by_chunk(
    weights, low, chunk_lists, kept_sums, num_chunks,
    GROUP: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`kept_sums` by chunk of the weights that are not below `low`, bits; GROUP chunks at once."""
    WIDTH: tl.constexpr = BLOCK // GROUP
    for first in range(0, num_chunks, GROUP):
        chunks = first + tl.arange(0, GROUP)
        exists = chunks < num_chunks
        counts = tl.load(chunk_lists + chunks * 2 + 1, mask=exists, other=0)
        begins = tl.load(chunk_lists + chunks * 2, mask=exists & (counts > 0), other=0)
        sums = tl.full([GROUP, WIDTH], 0, tl.int64)
        for start in tl.range(0, tl.max(counts, axis=0), WIDTH, num_stages=STAGES):
            places = start + tl.arange(0, WIDTH)[None, :]
            inside = places < counts[:, None]
            block = tl.load(weights + begins[:, None] + places, mask=inside, other=0.0)
            kept = block.to(tl.int64, bitcast=True) >= low
            sums += tl.where(kept, to_shares(block, SCALE), 0)
        tl.store(kept_sums + chunks, tl.sum(sums, axis=1), mask=exists)
    tl.debug_barrier()


@triton.jit
def draw_of_few(
    draw, total, weights, keys, ids, count, size, least, top_k, top_p,
    SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The drawn one of at most BLOCK candidates, which are read once."""
    places = tl.arange(0, BLOCK)
    inside = places < count
    block = tl.load(weights + places, mask=inside, other=0.0)
    token_ids = tl.load(ids + places, mask=inside, other=size)
    bits = block.to(tl.int64, bitcast=True)
    shares = to_shares(block, SCALE)
    if top_k > 0:
        scores = tl.load(keys + places, mask=inside, other=0.0).to(tl.int64, bitcast=True)
        ones = inside.to(tl.int64)
        low = tl.full([], 0, tl.int64)
        lowest = threshold_of_few(scores, ones, low, low + HIGHEST_SCORE, top_k)
        shares = tl.where(scores >= lowest, shares, 0)
        bits = tl.where(scores >= lowest, bits, 0)
        total = tl.sum(shares, axis=0)
    if top_p < 1.0:
        reach = tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)
        high = tl.full([], 1.0, tl.float64).to(tl.int64, bitcast=True)
        lowest = threshold_of_few(bits, shares, least, high, reach)
        shares = tl.where(bits >= lowest, shares, 0)
    target = tl.umulhi(draw, tl.sum(shares, axis=0).to(tl.uint64)).to(tl.int64)
    # The first id at which the sum exceeds the target: the highest number, when they count from the end.
    numbers = (size - token_ids).to(tl.int64)
    none = tl.full([], 0, tl.int64)
    return size - threshold_of_few(numbers, shares, none, none + size, target + 1).to(tl.int32)


@triton.jit
def draw_of_many(
    draw, total, weights, keys, ids, count, least, top_k, top_p,
    chunk_lists, kept_sums, num_chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, GROUP: tl.constexpr,
    SCALE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The drawn one of a list of candidates; writes over the keys."""
    low = tl.full([], 0, tl.int64)
    chunks = tl.arange(0, CHUNKS)
    if top_k > 0:
        high = low + HIGHEST_SCORE
        lowest = threshold_of_many(keys, count, None, low, high, top_k, SCALE, BLOCK, STAGES)
        total = drop_below(weights, keys, count, lowest, SCALE, BLOCK, STAGES)
    if top_p < 1.0:
        reach = tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)
        high = tl.full([], 1.0, tl.float64).to(tl.int64, bitcast=True)
        low = threshold_of_many(weights, count, keys, least, high, reach, SCALE, BLOCK, STAGES)
    sum_by_chunk(weights, low, chunk_lists, kept_sums, num_chunks, GROUP, SCALE, BLOCK, STAGES)
    sums = tl.load(kept_sums + chunks, mask=chunks < num_chunks, other=0)
    target = tl.umulhi(draw, tl.sum(sums, axis=0).to(tl.uint64)).to(tl.int64)
    chunk = tl.sum((tl.cumsum(sums, axis=0) <= target).to(tl.int32), axis=0)
    before = tl.sum(tl.where(chunks < chunk, sums, 0), axis=0)
    begin, number = tl.load(chunk_lists + chunk * 2), tl.load(chunk_lists + chunk * 2 + 1)
    places = tl.arange(0, CHUNK)
    block = tl.load(weights + begin + places, mask=places < number, other=0.0)
    kept = block.to(tl.int64, bitcast=True) >= low
    passed = tl.cumsum(tl.where(kept, to_shares(block, SCALE), 0), axis=0) + before <= target
    return tl.load(ids + begin + tl.sum(passed.to(tl.int32), axis=0))


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
    temperatures, top_ks, top_ps, min_ps, seeds, positions, chunk_sums, num_chunks,
    num_candidates, chunk_lists, candidate_weights, candidate_keys, candidate_ids, kept_sums, token_ids,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, GROUP: tl.constexpr,
    SCALE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The first token of a row, by ids, at which the sum of the kept weights exceeds draw · whole sum."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(drawn_rows + number).to(tl.int64)
    # All at once, before anything depends on one of them.
    flag, slot = tl.load(flags + row), tl.load(edit_slots + row)
    count = tl.load(num_candidates + row)
    seed, position = tl.load(seeds + row), tl.load(positions + row)
    top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
    best, temperature = tl.load(bests + row).to(tl.float64), tl.load(temperatures + row)
    if flag == 0:
        draw = random_bits(seed, position)
        chunks = tl.arange(0, CHUNKS)
        place = chunk_sums + number * num_chunks + chunks
        sums = tl.load(place, mask=chunks < num_chunks, other=0)
        total = tl.sum(sums, axis=0)
        is_cut = (top_k > 0) | (min_p > 0.0)
        if is_cut | (top_p < 1.0):
            # Below all weights of the list, and above the zeros of those that were dropped or are none.
            least = tl.where(is_cut, min_p, (1.0 - top_p) / (2.0 * size))
            least = tl.maximum(least.to(tl.int64, bitcast=True), 1)
            weights, keys = candidate_weights + number * size, candidate_keys + number * size
            ids = candidate_ids + number * size
            if count <= BLOCK:
                token_id = draw_of_few(
                    draw, total, weights, keys, ids, count, size, least, top_k, top_p,
                    SCALE, BLOCK,
                )  # fmt: skip
            else:
                token_id = draw_of_many(
                    draw, total, weights, keys, ids, count, least, top_k, top_p,
                    chunk_lists + number * num_chunks * 2, kept_sums + number * num_chunks, num_chunks,
                    CHUNK, CHUNKS, GROUP, SCALE, BLOCK, STAGES,
                )  # fmt: skip
        else:
            target = tl.umulhi(draw, total.to(tl.uint64)).to(tl.int64)
            chunk = tl.sum((tl.cumsum(sums, axis=0) <= target).to(tl.int32), axis=0)
            before = tl.sum(tl.where(chunks < chunk, sums, 0), axis=0)
            columns = chunk * CHUNK + tl.arange(0, CHUNK)
            values = load_values(logits, row_stride, edited, slot, row, columns, size)
            _, _, shares = weigh(values, best, temperature, SCALE)
            is_passed = before + tl.cumsum(shares, axis=0) <= target
            token_id = chunk * CHUNK + tl.sum(is_passed.to(tl.int32), axis=0)
        tl.store(token_ids + row, token_id.to(tl.int64))
