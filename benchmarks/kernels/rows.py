"""Norms and activations: every value is read once and written once, and the limit is the memory's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from contest import Contest
from torch.nn import functional

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.rms_norm import make_rms_norm
from pagemesh.kernels.rope import make_rotation

ITEM = 2
SIZES = {"cpu": (768, 2048, 16, 64), "cuda": (4096, 14336, 40, 128)}
"""Hidden size, intermediate size, query and key heads, head_dim."""


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """For a decode, a batch of decodes and a chunk of a prompt."""
    hidden, intermediate, num_heads, head_dim = SIZES[device.type]
    weight = torch.ones(hidden, device=device)
    short_weight = weight.bfloat16()
    norm, rotate = make_rms_norm(weight, 1e-6), make_rotation(device)
    activate = make_gated_activation(Gate("silu"), device)
    many = 8192 if device.type == "cuda" else 512
    for num_rows in (1, many) if quick else (1, 64, many):
        rows = torch.randn(num_rows, hidden, device=device).bfloat16()
        gate_up = torch.randn(num_rows, 2 * intermediate, device=device).bfloat16()
        heads = torch.randn(num_rows, num_heads, head_dim, device=device).bfloat16()
        factors = torch.ones(num_rows, head_dim // 2, dtype=torch.complex64, device=device)

        yield Contest(
            f"RMSNorm, {num_rows} rows",
            2 * rows.numel() * ITEM,
            4.0 * rows.numel(),
            {
                "ours": partial(norm, rows),
                "torch": partial(functional.rms_norm, rows, (hidden,), short_weight, 1e-6),
            },
        )
        yield Contest(
            f"gated activation, {num_rows} rows",
            1.5 * gate_up.numel() * ITEM,
            3.0 * gate_up.numel(),
            {"ours": partial(activate, gate_up), "torch": partial(_activate, gate_up)},
        )
        yield Contest(
            f"rotation, {num_rows} rows",
            2 * heads.numel() * ITEM + factors.numel() * 8,
            3.0 * heads.numel(),
            {"ours": partial(rotate, heads, factors), "torch": partial(_turn, heads, factors)},
        )


def _activate(gate_up: torch.Tensor) -> torch.Tensor:
    gates, ups = gate_up.chunk(2, -1)
    return functional.silu(gates) * ups


def _turn(heads: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(heads.float().view(*heads.shape[:2], -1, 2))
    return heads.copy_(torch.view_as_real(pairs * factors.unsqueeze(1)).flatten(-2))
