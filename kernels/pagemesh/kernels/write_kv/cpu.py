"""Storing keys and values by one scatter of torch's."""

from __future__ import annotations

import torch

from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.write_kv.interface import check_write


class CpuKvWriter:
    """`KvWriter` of CPU tensors. Keys and values in FP8 are for GPUs."""

    def places(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`: the rows of key and value, int64 [T, 2]."""
        # torch would count negative ones from the end, and take too high ones for values' rows.
        if len(slots):
            lowest, highest = (int(slot) for slot in slots.aminmax())
            if not 0 <= lowest <= highest < num_slots:
                raise IndexError(f"slots {lowest} to {highest} are not all among {num_slots}")
        return torch.stack([slots, slots + num_slots], dim=1)

    def write(
        self,
        layer_kv: torch.Tensor,
        keys_values: torch.Tensor,
        places: torch.Tensor,
        scales: KvScales | None = None,
    ) -> None:
        """See `KvWriter`."""
        if scales is not None:
            raise ValueError(f"keys and values in {layer_kv.dtype} are for CUDA devices")
        check_write(layer_kv, keys_values, places, scales)
        layer_kv.view(-1, *layer_kv.shape[3:]).index_put_((places,), keys_values)
