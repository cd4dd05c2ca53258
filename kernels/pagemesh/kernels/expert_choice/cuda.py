"""Choosing experts on CUDA devices: one kernel in place of a sort, a softmax and what lies between them.

Of a few tokens by one program, which sorts their choices by expert too. Nothing is summed whose order could change with
the number of tokens: the shares of all experts are added as whole numbers, those of the chosen ones one after another.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.expert_choice.interface import ByExpert, Choices, check_logits
from pagemesh.kernels.launch import cdiv, launch, next_power_of_2
from pagemesh.kernels.linear.tiles import choose_block_t, most_token_tiles
from pagemesh.kernels.sampling.kernel import LEAST_PACK, to_keys, to_values

_MOST_LOGITS: Final = 8192
"""That one program chooses by. It sorts the choices of all tokens if there are no more."""

_SHARED_LOGITS: Final = 2048
"""Of a program, where several share the tokens."""

_LOGITS_PER_WARP: Final = 512


class CudaExpertChoice:
    """`ExpertChoice` of CUDA tensors."""

    def __init__(self, num_chosen: int, *, normalize: bool) -> None:
        self._num_chosen = num_chosen
        self._normalize = normalize

    def __call__(self, logits: torch.Tensor) -> Choices:
        check_logits(logits, self._num_chosen)
        num_tokens, num_experts = logits.shape
        weights = logits.new_empty(num_tokens, self._num_chosen)
        experts = torch.empty_like(weights, dtype=torch.int64)
        block_experts = next_power_of_2(num_experts)
        block_tokens = next_power_of_2(max(num_tokens, 1))
        by_expert, tile_size = None, 0
        if block_tokens * block_experts <= _MOST_LOGITS:
            tile_size = choose_block_t(max(weights.numel(), 1), num_experts)
            num_tiles = most_token_tiles(weights.numel(), tile_size, num_experts)
            order = torch.empty(weights.numel(), dtype=torch.int32, device=logits.device)
            by_expert = ByExpert(order, order.new_empty(num_tiles, 3))
        else:
            block_tokens = max(_SHARED_LOGITS // block_experts, 1)
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        launch(
            choose_kernel,
            (cdiv(num_tokens, block_tokens),),
            {
                "logits": logits,
                "row_stride": logits.stride(0),
                "weights": weights,
                "experts": experts,
                "order": None if by_expert is None else by_expert.order,
                "tiles": None if by_expert is None else by_expert.tiles,
                "num_tokens": num_tokens,
                "num_tiles": 0 if by_expert is None else len(by_expert.tiles),
                "tile_size": tile_size,
                "EXPERTS": num_experts,
                "CHOICES": self._num_chosen,
                "NORMALIZES": self._normalize,
                "BLOCK_TOKENS": block_tokens,
                "BLOCK_EXPERTS": block_experts,
                "BLOCK_CHOICES": next_power_of_2(self._num_chosen),
            },
            num_warps=min(max(block_tokens * block_experts // _LOGITS_PER_WARP, 1), 16),
            overlaps=True,
        )
        return Choices(weights, experts, by_expert)


SCALE = tl.constexpr(float(1 << 44))
"""A share counts as share · SCALE, rounded: 2^18 experts have room in 63 bits."""


@triton.jit
def share_among_all(logits):
    """The softmax of each row of float32 [tokens, experts]; logits of -inf have no share."""
    powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    total = tl.sum((powers * SCALE + 0.5).to(tl.int64), axis=1).to(tl.float32) / SCALE
    return tl.div_rn(powers, tl.zeros_like(powers) + total[:, None])


@triton.jit
def store_by_expert(
    ranks, exists, token, expert, order, tiles, num_tiles, tile_size, CHOICES: tl.constexpr
):
    """`order` and `tiles` (see `ByExpert`) of all tokens' choices: `ranks` [tokens, experts] says
    which of a token's choices an expert is, -1 for none. A token chooses no expert twice, so an
    expert's pairs follow its tokens."""
    is_chosen = (ranks >= 0) & exists[:, None]
    ones = is_chosen.to(tl.int32)
    counts = tl.sum(ones, axis=0)
    begin = tl.cumsum(counts, axis=0) - counts
    places = begin[None, :] + tl.cumsum(ones, axis=0) - ones
    tl.store(order + places, token[:, None] * CHOICES + ranks, mask=is_chosen)
    needed = (counts + tile_size - 1) // tile_size
    first_tile = tl.cumsum(needed, axis=0) - needed
    for number in range(tl.max(needed, axis=0)):
        tile = tiles + (first_tile + number) * 3
        is_there = number < needed
        tl.store(tile, expert, mask=is_there)
        tl.store(tile + 1, begin + number * tile_size, mask=is_there)
        tl.store(tile + 2, begin + counts, mask=is_there)
    for start in range(tl.sum(needed, axis=0), num_tiles, expert.shape[0]):
        unused = start + expert
        for part in tl.static_range(3):
            tl.store(tiles + unused * 3 + part, tl.zeros_like(expert), mask=unused < num_tiles)


@triton.jit(do_not_specialize=["num_tokens", "num_tiles", "tile_size"])
def choose_kernel(
    logits,
    row_stride,
    weights,
    experts,
    order,
    tiles,
    num_tokens,
    num_tiles,
    tile_size,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
    NORMALIZES: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_CHOICES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`weights` and `experts` [T, CHOICES] of `logits` [T, EXPERTS], and `order` and `tiles` if there are
    any: one program has all tokens then."""
    wait_for_earlier(EARLY)
    token = tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    expert = tl.arange(0, BLOCK_EXPERTS)
    exists = token < num_tokens
    # Rows beyond the last one are that one again: no row is without any share.
    row = tl.minimum(token, num_tokens - 1).to(tl.int64)
    is_expert = (expert < EXPERTS)[None, :]
    place = logits + row[:, None] * row_stride + expert[None, :]
    values = tl.load(place, mask=is_expert, other=float("-inf")).to(tl.float32)
    if not NORMALIZES:
        values = share_among_all(values)
    # The highest number is that of the highest value and, of those that have it, the first expert.
    numbers = tl.where(
        is_expert, (to_keys(values).to(tl.int64) << 32) - expert[None, :], LEAST_PACK
    )
    ranks = tl.full([BLOCK_TOKENS, BLOCK_EXPERTS], -1, tl.int32)
    choice = tl.arange(0, BLOCK_CHOICES)
    chosen = tl.zeros([BLOCK_TOKENS, BLOCK_CHOICES], tl.int64)
    shares = tl.zeros([BLOCK_TOKENS, BLOCK_CHOICES], tl.float32)
    total = tl.zeros([BLOCK_TOKENS], tl.float32)
    highest = tl.zeros([BLOCK_TOKENS], tl.float32)
    for rank in tl.static_range(CHOICES):
        best = tl.max(numbers, axis=1)
        is_best = numbers == best[:, None]
        numbers = tl.where(is_best, LEAST_PACK, numbers)
        ranks = tl.where(is_best, rank, ranks)
        best_expert = -best & 0xFFFFFFFF
        share = to_values(((best + best_expert) >> 32).to(tl.int32))
        if NORMALIZES:
            if rank == 0:
                highest = share
            share = tl.exp(share - highest)
            total += share
        is_own = (choice == rank)[None, :]
        chosen = tl.where(is_own, best_expert[:, None], chosen)
        shares = tl.where(is_own, share[:, None], shares)
    if NORMALIZES:
        shares = tl.div_rn(shares, tl.zeros_like(shares) + total[:, None])
    own = token.to(tl.int64)[:, None] * CHOICES + choice[None, :]
    is_own = exists[:, None] & (choice < CHOICES)[None, :]
    tl.store(weights + own, shares.to(weights.dtype.element_ty), mask=is_own)
    tl.store(experts + own, chosen, mask=is_own)
    if order is not None:
        store_by_expert(ranks, exists, token, expert, order, tiles, num_tiles, tile_size, CHOICES)
