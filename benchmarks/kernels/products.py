"""Products with weights: with few rows the limit is reading the weight, with many it is the arithmetic.

Bytes: the weight, the inputs and the outputs, each once. Flops: two for every pair of a row and a weight, those of
whole numbers too, of which a processor may do more than the limit, which is that of bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from contest import Contest, Run
from onednn_products import PackedLinear, can_pack

from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear
from pagemesh.kernels.linear.interface import PlainLinear
from pagemesh.kernels.linear.packed import ChannelInt8

ITEM = 2
LAYERS = 12
"""Copies of a weight on the CPU, as weights change from layer to layer: none is in the cache."""

WEIGHTS = {
    "cpu": {"160M gates and ups": (4096, 768), "160M down": (768, 2048)},
    "cuda": {
        "Llama 3 8B queries, keys, values": (6144, 4096),
        "Llama 3 8B output": (4096, 4096),
        "Llama 3 8B gates and ups": (28672, 4096),
        "Llama 3 8B down": (4096, 14336),
        "Llama 3 8B head": (128256, 4096),
    },
}


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Every weight with one row, with some and with many."""
    on_gpu = device.type == "cuda"
    rows = (1, 16, 64, 256, 8192) if on_gpu else (1, 8, 32, 512)
    for name, (num_out, num_in) in WEIGHTS[device.type].items():
        copies = 1 if on_gpu else LAYERS
        weights = [torch.randn(num_out, num_in, device=device).bfloat16() for _ in range(copies)]
        for num_rows in rows[::2] if quick else rows:
            inputs = torch.randn(num_rows, num_in, device=device).bfloat16()
            if num_rows * num_out > 1 << 28:
                continue  # logits of so many rows are never asked for
            yield Contest(
                f"{name}, {num_rows} rows",
                copies * (num_out * num_in + num_rows * (num_in + num_out)) * ITEM,
                copies * 2.0 * num_out * num_in * num_rows,
                {"ours": _all([make_linear(Dense(one)) for one in weights], inputs)}
                | _theirs(weights, inputs),
                aim=0.85 if on_gpu and num_rows == 1 else None,
            )
    yield from _gated(device, quick=quick)
    if not on_gpu:
        yield from _int8(quick=quick)


def _gated(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Gates, ups and their activation in one."""
    num_out, num_in = WEIGHTS[device.type][
        "Llama 3 8B gates and ups" if device.type == "cuda" else "160M gates and ups"
    ]
    weight = torch.randn(num_out, num_in, device=device).bfloat16()
    ours, plain = make_gated_linear(Dense(weight), None, Gate("silu")), PlainLinear(weight, None)
    for num_rows in (1, 64) if quick else (1, 16, 64, 512):
        inputs = torch.randn(num_rows, num_in, device=device).bfloat16()

        def theirs(inputs: torch.Tensor = inputs) -> torch.Tensor:
            gates, ups = plain(inputs).chunk(2, -1)
            return torch.nn.functional.silu(gates) * ups

        yield Contest(
            f"gated activation of a product, {num_rows} rows",
            (num_out * num_in + num_rows * (num_in + num_out / 2)) * ITEM,
            2.0 * num_out * num_in * num_rows,
            {"ours": _all([ours], inputs), "torch": theirs},
        )


def _int8(*, quick: bool) -> Iterator[Contest]:
    """Rows and weights of whole numbers of 8 bits, beside bfloat16."""
    for size in (2048,) if quick else (2048, 4096):
        codes = [
            torch.randint(-128, 128, (size, size), dtype=torch.int8) for _ in range(LAYERS // 2)
        ]
        scales = torch.rand(size, 1) / 1000
        ours = [make_linear(ChannelInt8(torch.bfloat16, each, scales)) for each in codes]
        dense = [make_linear(Dense(each.bfloat16())) for each in codes]
        for num_rows in (1, 64) if quick else (1, 16, 64, 512):
            inputs = torch.randn(num_rows, size).bfloat16()
            yield Contest(
                f"W8A8 of {size} by {size}, {num_rows} rows",
                len(codes) * (size * size + 2 * num_rows * size * ITEM),
                len(codes) * 2.0 * size * size * num_rows,
                {"ours": _all(ours, inputs), "pagemesh, bfloat16": _all(dense, inputs)},
            )


def _all(linears: Sequence[Callable[[torch.Tensor], object]], inputs: torch.Tensor) -> Run:
    def run() -> None:
        for linear in linears:
            linear(inputs)

    return run


def _theirs(weights: list[torch.Tensor], inputs: torch.Tensor) -> dict[str, Run]:
    runs = {"torch": _all([PlainLinear(one, None) for one in weights], inputs)}
    if can_pack(weights[0]):
        runs["oneDNN, packed"] = _all([PackedLinear(one) for one in weights], inputs)
    return runs
