"""Scales of keys and values that are kept in eight bits."""

from __future__ import annotations

from typing import NamedTuple

import torch

FP8 = torch.float8_e4m3fn
"""One sign, four bits of exponent, three of mantissa, no infinities (Micikevicius et al. 2022, "FP8
formats for deep learning", https://arxiv.org/abs/2209.05433)."""

MAX_FP8 = 448.0


class KvScales(NamedTuple):
    """Of one layer: what is stored times its head's scale is the key or the value."""

    keys: torch.Tensor  # float32 [kv heads]
    values: torch.Tensor  # float32 [kv heads]


def check_scales(scales: KvScales | None, kv_dtype: torch.dtype, num_kv_heads: int) -> None:
    """Raise ValueError unless there are scales, one for each kv head, exactly where KV is FP8."""
    if scales is None:
        if kv_dtype == FP8:
            raise ValueError(f"keys and values in {kv_dtype} need scales [{num_kv_heads}]")
        return
    if kv_dtype != FP8:
        raise ValueError(f"keys and values in {kv_dtype} have no scales")
    for name, scale in zip(scales._fields, scales, strict=True):
        if scale.shape != (num_kv_heads,) or scale.dtype != torch.float32:
            raise ValueError(
                f"the scales of {name} are {scale.dtype} {list(scale.shape)},"
                f" but must be torch.float32 [{num_kv_heads}]"
            )
