"""What is done to rows between products: every value is read once, and the limit is the memory's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from contest import Contest
from torch.nn import functional

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.rms_norm import make_rms_norm
from pagemesh.kernels.write_kv import Turn, make_kv_writer

ITEM = 2
SIZES = {"cpu": (768, 2048, 12, 4, 64), "cuda": (4096, 14336, 32, 8, 128)}
"""Hidden size, intermediate size, query heads, kv heads, head_dim."""


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """For a decode, a batch of decodes and a chunk of a prompt."""
    hidden, intermediate, *_ = SIZES[device.type]
    weight = torch.ones(hidden, device=device)
    short_weight = weight.bfloat16()
    norm = make_rms_norm(weight, 1e-6)
    activate = make_gated_activation(Gate("silu"), device)
    many = 8192 if device.type == "cuda" else 512
    for num_rows in (1, many) if quick else (1, 64, many):
        rows = torch.randn(num_rows, hidden, device=device).bfloat16()
        gate_up = torch.randn(num_rows, 2 * intermediate, device=device).bfloat16()
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
        yield _turns(device, num_rows)


def _activate(gate_up: torch.Tensor) -> torch.Tensor:
    gates, ups = gate_up.chunk(2, -1)
    return functional.silu(gates) * ups


def _turns(device: torch.device, num_rows: int) -> Contest:
    """Of queries and keys, which are stored with the values."""
    *_, num_heads, num_kv_heads, head_dim = SIZES[device.type]
    writer = make_kv_writer(device)
    heads = torch.randn(num_rows, num_heads + 2 * num_kv_heads, head_dim, device=device).bfloat16()
    factors = torch.ones(num_rows, head_dim // 2, dtype=torch.complex64, device=device)
    layer_kv = torch.zeros(2, num_rows, 1, num_kv_heads, head_dim, device=device).bfloat16()
    slots = torch.arange(num_rows, device=device)
    slot_mapping = writer.slot_mapping(slots, num_rows)
    num_turned = num_rows * (num_heads + num_kv_heads) * head_dim
    return Contest(
        f"turns and writes of KV, {num_rows} rows",
        (heads.numel() + num_turned + layer_kv.numel()) * ITEM + factors.numel() * 8,
        3.0 * num_turned,
        {
            "ours": partial(writer.write, layer_kv, heads, slot_mapping, None, Turn(factors)),
            "torch": partial(_turn_and_write, layer_kv, heads, slots, factors),
        },
    )


def _turn_and_write(
    layer_kv: torch.Tensor, heads: torch.Tensor, slots: torch.Tensor, factors: torch.Tensor
) -> None:
    num_kv_heads = layer_kv.shape[3]
    turned = heads[:, :-num_kv_heads]
    pairs = torch.view_as_complex(turned.float().view(*turned.shape[:2], -1, 2))
    turned.copy_(torch.view_as_real(pairs * factors.unsqueeze(1)).flatten(2))
    keys_values = heads[:, -2 * num_kv_heads :].view(-1, 2, *layer_kv.shape[3:])
    layer_kv[:, slots, 0] = keys_values.transpose(0, 1)
