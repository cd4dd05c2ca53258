"""Rotation of the query and key heads in a fused projection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.rope import make_rotation
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """Of Llama 3 8B, Qwen 3 8B, Gemma 2 9B, Gemma 3 and GPT-OSS 20B."""
    device = torch.device("meta")
    for name, num_turned, num_all, head_dim, is_normed in (
        ("128 a head", 40, 48, 128, False),
        ("128 a head, normed", 40, 48, 128, True),
        ("256 a head", 24, 32, 256, False),
        ("256 a head, normed", 24, 32, 256, True),
        ("64 a head", 72, 80, 64, False),
    ):
        weight = meta(num_turned, head_dim, dtype=torch.float32) if is_normed else None
        rotate = make_rotation(device, weight, 1e-6)
        heads = meta(8, num_all, head_dim)[:, :num_turned]
        factors = meta(8, head_dim // 2, dtype=torch.complex64)
        yield Case(name, partial(rotate, heads, factors))
