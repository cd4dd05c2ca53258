"""Turning queries and keys of a fused projection, and storing keys and values, as they are and in FP8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.target import target_of
from pagemesh.kernels.write_kv import Turn, make_kv_writer
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """Of Llama 3 8B, Qwen 3 8B, Gemma 2 9B, Gemma 3 and GPT-OSS 20B; and a layer of the first without RoPE."""
    writer = make_kv_writer(torch.device("meta"))
    slots = meta(64, dtype=torch.int64)
    for name, num_heads, num_kv_heads, head_dim, turns, is_normed, in_fp8 in (
        ("128 a head", 32, 8, 128, True, False, False),
        ("128 a head, normed", 32, 8, 128, True, True, False),
        ("256 a head", 16, 8, 256, True, False, False),
        ("256 a head, normed", 16, 8, 256, True, True, False),
        ("64 a head", 64, 8, 64, True, False, False),
        ("128 a head, not turned", 32, 8, 128, False, False, False),
        ("128 a head, FP8", 32, 8, 128, True, False, True),
        ("128 a head, not turned, FP8", 32, 8, 128, False, False, True),
    ):
        if in_fp8 and target_of(torch.device("meta")).capability < 89:
            continue
        turn = scales = None
        if turns:
            weight = meta(num_heads + num_kv_heads, head_dim, dtype=torch.float32)
            factors = meta(64, head_dim // 2, dtype=torch.complex64)
            turn = Turn(factors, weight if is_normed else None, 1e-6)
        if in_fp8:
            scales = KvScales(*(meta(num_kv_heads, dtype=torch.float32) for _ in range(2)))
        layer_kv = meta(2, 999, 16, num_kv_heads, head_dim, dtype=FP8 if in_fp8 else torch.bfloat16)
        heads = meta(64, num_heads + 2 * num_kv_heads, head_dim)
        yield Case(name, partial(writer.write, layer_kv, heads, slots, scales, turn))
