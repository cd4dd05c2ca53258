"""The plain definition: one assignment per token."""

from __future__ import annotations

import torch

from pagemesh.kernels.kv_scales import FP8, MAX_FP8, KvScales
from pagemesh.kernels.write_kv.interface import check_write


class ReferenceKvWriter:
    """`KvWriter` to compare others with."""

    def places(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`."""
        return slots

    def write(
        self,
        layer_kv: torch.Tensor,
        keys_values: torch.Tensor,
        places: torch.Tensor,
        scales: KvScales | None = None,
    ) -> None:
        """See `KvWriter`; leaves out the slots that there are not."""
        check_write(layer_kv, keys_values, places, scales)
        block_size = layer_kv.shape[2]
        num_slots = layer_kv.shape[1] * block_size
        if scales is not None:
            quotients = keys_values.float() / torch.stack(scales)[None, :, :, None]
            keys_values = quotients.clamp(-MAX_FP8, MAX_FP8).to(FP8)
        for token, slot in enumerate(places.tolist()):
            if 0 <= slot < num_slots:
                layer_kv[:, slot // block_size, slot % block_size] = keys_values[token]
