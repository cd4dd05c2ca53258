"""Turning and storing on CUDA devices: each head is read once, its norm included."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.launch import launch
from pagemesh.kernels.whole_numbers import cdiv, next_power_of_2
from pagemesh.kernels.write_kv.interface import Turn, check_write
from pagemesh.kernels.write_kv.kernel import write_kv_kernel

_BLOCK: Final = 1024
"""Values of a program, about: 8 for each thread."""


class CudaKvWriter:
    """`KvWriter` of CUDA tensors; it can be captured in a CUDA graph."""

    def places(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`: the slots themselves, so that a captured step reads them where they are."""
        return slots

    def write(
        self,
        layer_kv: torch.Tensor,
        heads: torch.Tensor,
        places: torch.Tensor,
        scales: KvScales | None = None,
        turn: Turn | None = None,
    ) -> None:
        check_write(layer_kv, heads, places, scales, turn)
        if not layer_kv[0].is_contiguous() or places.dtype != torch.int64:
            raise ValueError(
                f"cannot store in {list(layer_kv.shape)} with strides {list(layer_kv.stride())}"
                f" at {places.dtype} slots: a layer lies densely, and slots are torch.int64"
            )
        num_kv_heads, head_dim = layer_kv.shape[3:]
        # All heads are turned but those of values; where none are, keys are stored and queries left alone.
        num_first = num_kv_heads if turn is None else heads.shape[1] - num_kv_heads
        block = next_power_of_2(head_dim)
        block_heads = min(next_power_of_2(num_first), max(_BLOCK // block, 1))
        num_programs = cdiv(num_first, block_heads) + cdiv(num_kv_heads, block_heads)
        launch(
            write_kv_kernel,
            (heads.shape[0], num_programs),
            {
                "heads": heads,
                "stride": heads.stride(0),
                "layer_kv": layer_kv,
                "value_offset": layer_kv.stride(0),
                "num_slots": layer_kv.shape[1] * layer_kv.shape[2],
                "slots": places,
                "key_scales": None if scales is None else scales.keys,
                "value_scales": None if scales is None else scales.values,
                "factors": None if turn is None else torch.view_as_real(turn.factors),
                "norm_weight": None if turn is None else turn.norm_weight,
                "eps": 0.0 if turn is None else turn.norm_eps,
                "NUM_HEADS": heads.shape[1] - 2 * num_kv_heads,
                "NUM_KV_HEADS": num_kv_heads,
                "HEAD_DIM": head_dim,
                "BLOCK_HEADS": block_heads,
                "BLOCK": block,
            },
            overlaps=True,
        )
