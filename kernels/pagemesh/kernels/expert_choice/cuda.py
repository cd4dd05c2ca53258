"""Choosing experts on CUDA devices: one kernel in place of a sort, a softmax and what lies between them."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.expert_choice.interface import ByExpert, Choices, check_logits
from pagemesh.kernels.expert_choice.kernel import choose_kernel
from pagemesh.kernels.launch import launch
from pagemesh.kernels.linear.tiles import choose_block_t, most_token_tiles
from pagemesh.kernels.whole_numbers import cdiv, next_power_of_2

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
