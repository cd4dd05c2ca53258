"""The plain definition: torch turns, and there is one assignment per token."""

from __future__ import annotations

import torch

from pagemesh.kernels.kv_scales import FP8, MAX_FP8, KvScales
from pagemesh.kernels.write_kv.interface import Turn, check_write


class ReferenceKvWriter:
    """`KvWriter` to compare others with."""

    def places(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        return slots

    def write(
        self,
        layer_kv: torch.Tensor,
        heads: torch.Tensor,
        places: torch.Tensor,
        scales: KvScales | None = None,
        turn: Turn | None = None,
    ) -> None:
        """See `KvWriter`; leaves out the slots that there are not."""
        check_write(layer_kv, heads, places, scales, turn)
        _, num_blocks, block_size, *kv_heads = layer_kv.shape
        num_kv_heads = kv_heads[0]
        if turn is not None:
            _turn(heads[:, :-num_kv_heads], turn)
        keys_values = heads[:, -2 * num_kv_heads :].view(-1, 2, *kv_heads)
        if scales is not None:
            quotients = keys_values.float() / torch.stack(scales)[None, :, :, None]
            keys_values = quotients.clamp(-MAX_FP8, MAX_FP8).to(FP8)
        for token, slot in enumerate(places.tolist()):
            if 0 <= slot < num_blocks * block_size:
                layer_kv[:, slot // block_size, slot % block_size] = keys_values[token]


def _turn(heads: torch.Tensor, turn: Turn) -> None:
    wide = heads.float()
    if turn.norm_weight is not None:
        mean = wide.square().mean(dim=-1, keepdim=True)
        wide = wide * torch.rsqrt(mean + turn.norm_eps) * turn.norm_weight
    pairs = torch.view_as_complex(wide.reshape(*wide.shape[:2], -1, 2).contiguous())
    heads.copy_(torch.view_as_real(pairs * turn.factors.unsqueeze(1)).flatten(2))
