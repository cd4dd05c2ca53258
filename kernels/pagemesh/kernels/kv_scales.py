"""Scales of keys and values that are kept in eight bits.

FP8 has scales of a layer, which the checkpoint brings. In int8 each head of each token has one of its own, behind its
numbers: so the bytes of a token's keys and values depend on that token alone, however it was computed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

FP8 = torch.float8_e4m3fn
"""One sign, four bits of exponent, three of mantissa, no infinities (Micikevicius et al. 2022, "FP8
formats for deep learning", https://arxiv.org/abs/2209.05433)."""

MAX_FP8 = 448.0

MAX_INT8: Final = 127
"""What the greatest of a head's numbers is stored as."""

INT8_SCALE_BYTES: Final = 4
"""Of the float32 behind a head's numbers in int8: what is stored times that is the key or the value."""


class KvScales(NamedTuple):
    """Of one layer: what is stored times its head's scale is the key or the value."""

    keys: torch.Tensor  # float32 [kv heads]
    values: torch.Tensor  # float32 [kv heads]


def row_size(head_dim: int, kv_dtype: torch.dtype) -> int:
    """Elements of a head's row of one token in a layer: its dimensions, and in int8 the bytes of its scale."""
    return head_dim + (INT8_SCALE_BYTES if kv_dtype == torch.int8 else 0)


def to_int8(heads: torch.Tensor) -> torch.Tensor:
    """Rows in int8 [..., head_dim + 4] of heads [..., head_dim]: symmetric, the greatest number is ±127.

    A head of numbers below about 1e-36 is zeros; the scale of one that is not finite is not finite either.
    """
    wide = heads.float()
    scales = wide.abs().amax(dim=-1, keepdim=True) / MAX_INT8
    # Quotients by what is rounded itself would be greater than that.
    scales = torch.where(scales < torch.finfo(torch.float32).tiny, 0.0, scales)
    numbers = torch.where(scales > 0, wide / scales, 0.0).nan_to_num(nan=0.0).round()
    return torch.cat([numbers.to(torch.int8), scales.view(torch.int8)], dim=-1)


def from_int8(rows: torch.Tensor) -> torch.Tensor:
    """Float32 [..., head_dim] of rows in int8 [..., head_dim + 4]."""
    numbers, scales = rows[..., :-INT8_SCALE_BYTES], rows[..., -INT8_SCALE_BYTES:]
    return numbers.float() * scales.clone().view(torch.float32)


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
