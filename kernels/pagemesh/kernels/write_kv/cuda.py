"""Storing keys and values on CUDA devices: every byte is read once and written once."""

from __future__ import annotations

import torch
import triton

from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.launch import launch
from pagemesh.kernels.write_kv.interface import check_write
from pagemesh.kernels.write_kv.kernel import write_kv_kernel


class CudaKvWriter:
    """`KvWriter` of CUDA tensors; it can be captured in a CUDA graph."""

    def places(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`: the slots themselves, so that a captured step reads them where they are."""
        return slots

    def write(
        self,
        layer_kv: torch.Tensor,
        keys_values: torch.Tensor,
        places: torch.Tensor,
        scales: KvScales | None = None,
    ) -> None:
        """See `KvWriter`."""
        check_write(layer_kv, keys_values, places, scales)
        num_heads, head_dim = layer_kv.shape[3:]
        size = num_heads * head_dim
        if keys_values.stride()[1:] != (size, head_dim, 1):
            raise ValueError(
                f"keys and values {list(keys_values.shape)} have strides"
                f" {list(keys_values.stride())}, but each token's must lie densely"
            )
        if not layer_kv[0].is_contiguous() or places.dtype != torch.int64:
            raise ValueError(
                f"cannot store in {list(layer_kv.shape)} with strides {list(layer_kv.stride())}"
                f" at {places.dtype} slots: a layer lies densely, and slots are torch.int64"
            )
        block = triton.next_power_of_2(size)
        launch(
            write_kv_kernel,
            (len(keys_values), 2),
            {
                "layer_kv": layer_kv,
                "value_offset": layer_kv.stride(0),
                "num_slots": layer_kv.shape[1] * layer_kv.shape[2],
                "keys_values": keys_values,
                "token_stride": keys_values.stride(0),
                "slots": places,
                "key_scales": None if scales is None else scales.keys,
                "value_scales": None if scales is None else scales.values,
                "HEAD_DIM": head_dim,
                "SIZE": size,
                "BLOCK": block,
            },
            # 8 values for each thread: 16 bytes in half precision.
            num_warps=min(max(block // 256, 1), 8),
        )
