"""Matrices as quantised checkpoints of each format have them, and the plain definition of what they stand for.

Codes, zero points and scales are drawn at random: a reader that takes them for others is found by any of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

GROUP: Final = 8
BLOCK: Final = (16, 8)


class Quantised(NamedTuple):
    """One matrix."""

    tensors: Mapping[str, torch.Tensor]
    """By what stands behind the module's name and a dot."""

    dense: torch.Tensor
    """float64 [out, in]."""


Maker = Callable[..., Quantised]


@dataclass(frozen=True)
class Format:
    """One way of quantising."""

    config: Mapping[str, Any]
    """Of config.json."""

    quantise: Maker
    """A random matrix of a shape: outputs and inputs, of stacks as their floats have it."""

    key: str = "quantization_config"


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Integers [n, m] below 2**bits → int32 [n, m · bits / 32], the first in the lowest bits."""
    per_word = 32 // bits
    packed = torch.zeros(codes.shape[0], codes.shape[1] // per_word, dtype=torch.int64)
    for place in range(per_word):
        packed |= codes[:, place::per_word].long() << (bits * place)
    return (packed - ((packed >> 31) << 32)).int()


def draw(high: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape)


def draw_scales(*shape: int, dtype: torch.dtype = torch.float16, largest: int = 8) -> torch.Tensor:
    """So that numbers of up to `largest` become ones as weights are."""
    return ((torch.rand(shape) + 0.1) / 2 / largest).to(dtype)


def of_inputs(of_groups: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """[out, groups] → [out, in] by the group of each input."""
    return of_groups[:, groups].double()


def runs(num_inputs: int, size: int = GROUP) -> torch.Tensor:
    return torch.arange(num_inputs) // size


def awq_words(codes: torch.Tensor) -> torch.Tensor:
    """Integers below 16 [out, n] → int32 [n, out / 8]."""
    # AutoAWQ packs columns 0, 2, 4, 6, 1, 3, 5, 7 of each 8 in this order.
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    runs_of_8 = codes.t().reshape(codes.shape[1], -1, 8)
    return words(runs_of_8[..., order].flatten(1), 4)


def awq(num_outputs: int, num_inputs: int, *, size: int = GROUP) -> Quantised:
    codes = draw(16, num_outputs, num_inputs)
    zeros = draw(16, num_outputs, num_inputs // size)
    scales = draw_scales(num_outputs, num_inputs // size)
    packed = {"qweight": awq_words(codes), "qzeros": awq_words(zeros)}
    groups = runs(num_inputs, size)
    dense = (codes - of_inputs(zeros, groups)) * of_inputs(scales, groups)
    return Quantised({**packed, "scales": scales.t().contiguous()}, dense)


def gptq(
    num_outputs: int,
    num_inputs: int,
    *,
    bits: int = 4,
    size: int | None = GROUP,
    first_version: bool = True,
    symmetric: bool = False,
    act_order: bool = False,
) -> Quantised:
    size = size or num_inputs
    groups = runs(num_inputs, size)
    if act_order:
        groups = groups[torch.randperm(num_inputs)]
    num_groups = num_inputs // size
    codes = draw(1 << bits, num_outputs, num_inputs)
    zeros = draw(1 << bits, num_outputs, num_groups)
    if symmetric:
        zeros.fill_(1 << (bits - 1))
    scales = draw_scales(num_outputs, num_groups, largest=1 << (bits - 1))
    stored = (zeros - 1) & ((1 << bits) - 1) if first_version else zeros
    tensors = {
        "qweight": words(codes, bits).t().contiguous(),
        "qzeros": words(stored.t().contiguous(), bits),
        "scales": scales.t().contiguous(),
        "g_idx": groups.int(),
    }
    return Quantised(tensors, (codes - of_inputs(zeros, groups)) * of_inputs(scales, groups))


def packed_integers(
    num_outputs: int,
    num_inputs: int,
    *,
    bits: int = 4,
    size: int | None = GROUP,
    symmetric: bool = True,
    act_order: bool = False,
) -> Quantised:
    """compressed-tensors' `pack-quantized`."""
    size = size or num_inputs
    groups = runs(num_inputs, size)
    if act_order:
        groups = groups[torch.randperm(num_inputs)]
    codes = draw(1 << bits, num_outputs, num_inputs)
    scales = draw_scales(
        num_outputs, num_inputs // size, dtype=torch.bfloat16, largest=1 << (bits - 1)
    )
    zeros = torch.full(scales.shape, 1 << (bits - 1))
    tensors = {
        "weight_packed": words(codes, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([num_outputs, num_inputs]),
    }
    if not symmetric:
        zeros = draw(1 << bits, *scales.shape)
        tensors["weight_zero_point"] = words(zeros.t(), bits).t().contiguous()
    if act_order:
        tensors["weight_g_idx"] = groups.int()
    return Quantised(tensors, (codes - of_inputs(zeros, groups)) * of_inputs(scales, groups))


def integers(
    num_outputs: int,
    num_inputs: int,
    *,
    symmetric: bool = True,
    others: Mapping[str, torch.Tensor] | None = None,
) -> Quantised:
    """compressed-tensors' `int-quantized`, a scale to a row."""
    codes = draw(128, num_outputs, num_inputs, low=-128)
    scales = draw_scales(num_outputs, 1, dtype=torch.bfloat16, largest=128)
    tensors = {"weight": codes.to(torch.int8), "weight_scale": scales, **(others or {})}
    zeros = torch.zeros(num_outputs, 1)
    if not symmetric:
        zeros = draw(128, num_outputs, 1, low=-128)
        tensors["weight_zero_point"] = zeros.to(torch.int8)
    return Quantised(tensors, (codes - zeros) * scales.double())


def fp8(
    num_outputs: int,
    num_inputs: int,
    *,
    scale: str,
    shape: Callable[[int, int], tuple[int, ...]],
    block: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    others: Mapping[str, torch.Tensor] | None = None,
) -> Quantised:
    numbers = (torch.randn(num_outputs, num_inputs) * 100).to(torch.float8_e4m3fn)
    scales = draw_scales(*shape(num_outputs, num_inputs), dtype=dtype, largest=200)
    rows, columns = block or (num_outputs if scales.numel() == 1 else 1, num_inputs)
    wide = scales.double().reshape(-(-num_outputs // rows), -1)
    wide = wide[torch.arange(num_outputs) // rows][:, torch.arange(num_inputs) // columns]
    tensors = {"weight": numbers, scale: scales, **(others or {})}
    return Quantised(tensors, numbers.double() * wide)


def blocks_of(num_outputs: int, num_inputs: int) -> tuple[int, ...]:
    return -(-num_outputs // BLOCK[0]), -(-num_inputs // BLOCK[1])


def llm_int8(num_outputs: int, num_inputs: int) -> Quantised:
    codes = draw(128, num_outputs, num_inputs, low=-127)
    largest = torch.rand(num_outputs) + 0.1
    scales = (largest / 127).double().unsqueeze(1)
    tensors = {
        "weight": codes.to(torch.int8),
        "SCB": largest,
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return Quantised(tensors, codes * scales)


NF4: Final = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip


def nf4(num_outputs: int, num_inputs: int, *, nested: bool, size: int = GROUP) -> Quantised:
    codes = draw(16, num_outputs * num_inputs)
    table = torch.tensor(NF4)
    num_groups = num_outputs * num_inputs // size
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": size,
        "dtype": "bfloat16",
        "shape": [num_outputs, num_inputs],
    }
    absmax = torch.rand(num_groups) / 2 + 0.1
    tensors = {"weight.absmax": absmax, "weight.quant_map": table}
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
        absmax_codes, nested_table = draw(256, num_groups), torch.linspace(-1, 1, 256)
        nested_absmax = torch.rand(-(-num_groups // 256)) / 5
        absmax = nested_table[absmax_codes] * nested_absmax[torch.arange(num_groups) // 256] + 0.25
        tensors |= {
            "weight.absmax": absmax_codes.to(torch.uint8),
            "weight.nested_absmax": nested_absmax,
            "weight.nested_quant_map": nested_table,
        }
    tensors["weight"] = (codes[::2] << 4 | codes[1::2]).to(torch.uint8).view(-1, 1)
    as_bytes = json.dumps(state).encode()
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(as_bytes), dtype=torch.uint8
    )
    scaled = table[codes].double() * absmax.double()[torch.arange(len(codes)) // size]
    return Quantised(tensors, scaled.view(num_outputs, num_inputs))


def torchao_int8(num_outputs: int, num_inputs: int) -> Quantised:
    """In groups, with zero points."""
    codes = draw(128, num_outputs, num_inputs, low=-128)
    scales = draw_scales(num_outputs, num_inputs // GROUP, dtype=torch.float32, largest=128)
    zeros = draw(128, *scales.shape, low=-128)
    tensors = {
        "_weight_qdata": codes.to(torch.int8),
        "_weight_scale": scales,
        "_weight_zero_point": zeros.to(torch.int8),
    }
    groups = runs(num_inputs)
    return Quantised(tensors, (codes - of_inputs(zeros, groups)) * of_inputs(scales, groups))


def torchao_int4(num_outputs: int, num_inputs: int) -> Quantised:
    codes = draw(8, num_outputs, num_inputs, low=-8)
    scales = draw_scales(num_inputs // GROUP, num_outputs, dtype=torch.bfloat16)
    numbers = draw_scales(num_inputs // GROUP, num_outputs, dtype=torch.bfloat16)
    tensors = {
        "_weight_qdata": (codes[:, ::2] & 15 | codes[:, 1::2] << 4).to(torch.int8),
        "_weight_scale": scales,
        "_weight_zero_point": numbers,
    }
    groups = runs(num_inputs)
    scaled = codes * of_inputs(scales.t(), groups)
    return Quantised(tensors, scaled + of_inputs(numbers.t(), groups))


E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def mxfp4(num_experts: int, num_inputs: int, num_outputs: int) -> Quantised:
    """Of GPT-OSS, whose floats have inputs before outputs: the dense ones are [experts, in, out]."""
    codes = draw(16, num_experts, num_outputs, num_inputs)
    exponents = draw(124, num_experts, num_outputs, num_inputs // 32, low=120)
    numbers = torch.tensor((*E2M1, *(-number for number in E2M1)), dtype=torch.float64)
    scales = torch.pow(2.0, exponents.double() - 127).repeat_interleave(32, -1)
    tensors = {
        "_blocks": (codes[..., ::2] | codes[..., 1::2] << 4)
        .to(torch.uint8)
        .view(num_experts, num_outputs, -1, 16),
        "_scales": exponents.to(torch.uint8),
    }
    return Quantised(tensors, (numbers[codes] * scales).transpose(1, 2).contiguous())
