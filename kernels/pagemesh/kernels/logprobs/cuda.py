"""Log probabilities on CUDA devices: of each chunk of a row, then of the row, what is needed.

The logits are read once, whatever is asked of them. No log probability is computed of a token that nobody asks for, and
none is written but those.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from pagemesh.kernels.launch import cdiv, launch, next_power_of_2
from pagemesh.kernels.logprobs.interface import TokenScores, check_scores
from pagemesh.kernels.sampling.kernel import to_keys, to_values
from pagemesh.kernels.target import Scratch

_CHUNK: Final = 2048


class CudaTokenScorer:
    """`TokenScorer`. Keeps its scratch memory: calls follow each other on a stream."""

    def __init__(self, device: torch.device, chunk: int = _CHUNK) -> None:
        self._chunk = chunk
        self._scratch = Scratch(device)

    def __call__(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        token_ids: torch.Tensor,
        scores: TokenScores,
    ) -> None:
        """Score `token_ids[row]`, int64 [R], for each of `rows`, int32 [S]; writes `scores`."""
        check_scores(logits, rows, token_ids, scores)
        (num_rows, num_top), size = scores.top_ids.shape, logits.shape[1]
        num_chunks = cdiv(size, self._chunk)
        take = self._scratch.take
        shared: dict[str, object] = {
            "logits": logits,
            "row_stride": logits.stride(0),
            "rows": rows,
            "token_ids": token_ids,
            "chunk_tops": take("tops", torch.float32, num_rows, num_chunks),
            "chunk_sums": take("sums", torch.float32, num_rows, num_chunks),
            "chunk_ranks": take("ranks", torch.int32, num_rows, num_chunks),
            "chunk_packs": take("packs", torch.int64, num_rows, num_chunks, num_top),
            "num_chunks": num_chunks,
            "NUM_TOP": num_top,
        }
        launch(chunk_kernel, (num_rows, num_chunks), {**shared, "size": size, "CHUNK": self._chunk})
        powers = {
            "CHUNKS": next_power_of_2(num_chunks),
            "PACKS": next_power_of_2(max(num_chunks * num_top, 1)),
        }
        launch(row_kernel, (num_rows,), {**shared, **scores._asdict(), **powers})


LEAST_PACK = tl.constexpr(-9223372036854775807)
LARGEST = tl.constexpr(3.4028234663852886e38)
"""Of float32."""


@triton.jit
def chunk_kernel(
    logits, row_stride, size, rows, token_ids,
    chunk_tops, chunk_sums, chunk_ranks, chunk_packs, num_chunks,
    CHUNK: tl.constexpr, NUM_TOP: tl.constexpr,
):  # fmt: skip
    """Maximum, sum of exponentials below it, tokens at least as likely as the row's, and the likeliest."""
    number, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + number).to(tl.int64)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = columns < size
    values = tl.load(logits + row * row_stride + columns, mask=inside, other=float("-inf"))
    values = values.to(tl.float32)
    top = tl.max(tl.where(values != values, float("inf"), values), axis=0)
    # In a chunk of impossible tokens there is nothing to add, and in a row that is not finite no sense.
    is_finite = tl.abs(top) <= LARGEST
    exponentials = tl.exp(
        tl.where(is_finite, values - tl.where(is_finite, top, 0.0), float("-inf"))
    )
    place = number * num_chunks + chunk
    tl.store(chunk_tops + place, top)
    tl.store(chunk_sums + place, tl.sum(exponentials, axis=0))
    chosen = tl.load(logits + row * row_stride + tl.load(token_ids + row)).to(tl.float32)
    tl.store(chunk_ranks + place, tl.sum((inside & (values >= chosen)).to(tl.int32), axis=0))
    if NUM_TOP > 0:
        packs = (to_keys(values).to(tl.int64) << 32) - columns
        packs = tl.where(inside, packs, LEAST_PACK)
        for index in range(NUM_TOP):
            pack = tl.max(packs, axis=0)
            tl.store(chunk_packs + place * NUM_TOP + index, pack)
            packs = tl.where(packs == pack, LEAST_PACK, packs)


@triton.jit
def row_kernel(
    logits, row_stride, rows, token_ids,
    chunk_tops, chunk_sums, chunk_ranks, chunk_packs, num_chunks,
    norms, logprobs, ranks, top_ids, top_logprobs,
    CHUNKS: tl.constexpr, PACKS: tl.constexpr, NUM_TOP: tl.constexpr,
):  # fmt: skip
    """Put the chunks of a row together, in an order that depends on the vocabulary alone."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + number).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    exists = chunks < num_chunks
    places = number * num_chunks + chunks
    maxima = tl.load(chunk_tops + places, mask=exists, other=float("-inf"))
    top = tl.max(maxima, axis=0)
    sums = tl.load(chunk_sums + places, mask=exists, other=0.0)
    is_finite = tl.abs(top) <= LARGEST
    shift = tl.where(is_finite, top, 0.0)
    factors = tl.exp(tl.where(is_finite, maxima - shift, 0.0))
    total = tl.log(tl.where(is_finite, tl.sum(sums * factors, axis=0), 1.0))
    chosen = tl.load(logits + row * row_stride + tl.load(token_ids + row)).to(tl.float32)
    tl.store(norms + number, top + total)
    tl.store(logprobs + number, chosen - shift - total)
    tl.store(ranks + number, tl.sum(tl.load(chunk_ranks + places, mask=exists, other=0), axis=0))
    if NUM_TOP > 0:
        index = tl.arange(0, PACKS)
        place = chunk_packs + number * num_chunks * NUM_TOP + index
        packs = tl.load(place, mask=index < num_chunks * NUM_TOP, other=LEAST_PACK)
        for turn in range(NUM_TOP):
            pack = tl.max(packs, axis=0)
            packs = tl.where(packs == pack, LEAST_PACK, packs)
            token_id = -pack & 0xFFFFFFFF
            value = to_values(((pack + token_id) >> 32).to(tl.int32))
            tl.store(top_ids + number * NUM_TOP + turn, token_id.to(tl.int32))
            tl.store(top_logprobs + number * NUM_TOP + turn, value - shift - total)
