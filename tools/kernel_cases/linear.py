"""Products of Llama 3 8B, and of other models what is cut differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from pagemesh.kernels.linear import (
    Dense,
    Gate,
    make_gated_linear,
    make_linear,
    make_lookup,
    make_normed_product,
)
from pagemesh.kernels.linear.packed import ChannelInt8, Codebook, GroupInt, ScaledFp8
from pagemesh.kernels.linear.weight import Quantised
from pagemesh.kernels.rms_norm import make_rms_norm
from pagemesh.kernels.rms_norm.interface import UnscaledRows
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """Few tokens and many; whole sums and segments, plain and gated."""
    output = make_linear(Dense(meta(4096, 4096)))
    head = make_linear(Dense(meta(128256, 4096)))
    gated = make_gated_linear(Dense(meta(28672, 4096)), None, Gate("silu"))
    for num_tokens in (1, 17, 33, 8192):
        hidden = meta(num_tokens, 4096)
        yield Case(f"o, T = {num_tokens}", partial(output.add_to, hidden, hidden))
        yield Case(f"gate and up, T = {num_tokens}", partial(gated, hidden))
    yield Case("o, T = 128", partial(output.add_to, meta(128, 4096), meta(128, 4096)))
    for num_tokens in (1, 256):
        yield Case(f"head, T = {num_tokens}", partial(head, meta(num_tokens, 4096)))
    small = make_gated_linear(Dense(meta(6144, 1024)), None, Gate("silu"))
    for num_tokens in (1, 8192):
        name = f"gate and up of Qwen 3 0.6B, T = {num_tokens}"
        yield Case(name, partial(small, meta(num_tokens, 1024)))
    biased = make_linear(Dense(meta(2880, 4096)), meta(2880))
    yield Case("o of GPT-OSS, T = 1", partial(biased.add_to, meta(1, 2880), meta(1, 4096)))
    single = make_linear(Dense(meta(4096, 4096, dtype=torch.float32)))
    for num_tokens in (1, 8192):
        rows = meta(num_tokens, 4096, dtype=torch.float32)
        yield Case(f"float32, T = {num_tokens}", partial(single, rows))
    yield from _normed_cases()
    yield from _quantised_cases()


def _normed_cases() -> Iterator[Case]:
    """With a norm in front or behind; few tokens, whose sums of squares are read, and many."""
    output = make_linear(Dense(meta(4096, 4096)))
    for name, weight in (("", Dense(meta(28672, 4096))), (" in int4", int4(28672, 4096))):
        gated = make_gated_linear(weight, None, Gate("silu"))
        norm = make_rms_norm(meta(4096, dtype=torch.float32), 1e-6)
        behind = make_normed_product(norm, gated)
        for num_tokens in (1, 64, 256, 8192):
            squares = meta(
                *((num_tokens, 64) if num_tokens <= 256 else (num_tokens,)), dtype=torch.float32
            )
            rows = UnscaledRows(meta(num_tokens, 4096), squares)
            yield Case(
                f"gate and up{name} behind a norm, T = {num_tokens}",
                partial(behind.multiply, rows),
            )
    for num_tokens in (1, 17, 64, 128, 256):
        hidden = meta(num_tokens, 4096)
        yield Case(
            f"o in front of a norm, T = {num_tokens}",
            partial(behind.norm.of_sum, output, hidden, hidden),
        )
    wide = make_linear(Dense(meta(10240, 8192)))
    norm = make_rms_norm(meta(8192, dtype=torch.float32), 1e-6)
    behind = make_normed_product(norm, wide)
    for num_tokens in (64, 256):
        squares = meta(num_tokens, 128, dtype=torch.float32)
        rows = UnscaledRows(meta(num_tokens, 8192), squares)
        name = f"qkv of Llama 3 70B behind a norm, T = {num_tokens}"
        yield Case(name, partial(behind.multiply, rows))


def _quantised_cases() -> Iterator[Case]:
    """Each way to read codes; few tokens and many."""
    for name in ("FP8 x FP8", "FP8 x FP8 in blocks"):
        # Segments beside gates, and neither.
        small = make_gated_linear(WEIGHTS[name](6144, 1024), None, Gate("silu"))
        hidden = meta(512, 1024)
        yield Case(f"gate and up of Qwen 3 0.6B in {name}, T = 512", partial(small, hidden))
        head = make_linear(WEIGHTS[name](128256, 4096))
        yield Case(f"head in {name}, T = 256", partial(head, meta(256, 4096)))
    for name, make in WEIGHTS.items():
        output = make_linear(make(4096, 4096))
        gated = make_gated_linear(make(28672, 4096), None, Gate("silu"))
        for num_tokens in (1, 64, 8192):
            hidden = meta(num_tokens, 4096)
            yield Case(f"o in {name}, T = {num_tokens}", partial(output.add_to, hidden, hidden))
            yield Case(f"gate and up in {name}, T = {num_tokens}", partial(gated, hidden))
    for name in ("int4", "Q4_K", "int8", "FP8", "NF4"):
        look_up = make_lookup(WEIGHTS[name](128256, 4096))
        yield Case(f"table in {name}", partial(look_up, meta(64, dtype=torch.int64)))


def int4(*shape: int) -> GroupInt:
    """As AWQ's and GPTQ's: groups of 128 with zero points."""
    groups = (*shape[:-1], shape[-1] // 128)
    scales, zeros = meta(*groups, dtype=torch.float16), meta(*groups, dtype=torch.uint8)
    codes = meta(*shape[:-1], shape[-1] // 2, dtype=torch.uint8)
    return GroupInt(torch.bfloat16, codes, scales, 4, 128, zero_points=zeros)


def q4_k(*shape: int) -> GroupInt:
    """As llama.cpp's: groups of 32, with scales and minimums in units of 256."""
    groups = meta(*shape[:-1], shape[-1] // 32, dtype=torch.uint8)
    units = meta(*shape[:-1], shape[-1] // 256, dtype=torch.float16)
    codes = meta(*shape[:-1], shape[-1] // 2, dtype=torch.uint8)
    return GroupInt(
        torch.bfloat16,
        codes,
        groups,
        4,
        32,
        minimums=groups,
        scale_units=units,
        minimum_units=units,
    )


def int8(*shape: int) -> GroupInt:
    """A scale to a row."""
    scales = meta(*shape[:-1], 1, dtype=torch.float32)
    return GroupInt(torch.bfloat16, meta(*shape, dtype=torch.uint8), scales, 8, shape[-1], 128)


def fp8_blocks(*shape: int) -> ScaledFp8:
    """As DeepSeek's."""
    scales = meta(*shape[:-1], -(-shape[-1] // 128), dtype=torch.float32)
    return ScaledFp8(torch.bfloat16, meta(*shape, dtype=torch.float8_e4m3fn), scales, 128)


def mxfp4(*shape: int) -> Codebook:
    """As GPT-OSS has its experts."""
    numbers = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    table = (*numbers, *(-number for number in numbers))
    scales = meta(*shape[:-1], shape[-1] // 32, dtype=torch.float8_e8m0fnu)
    codes = meta(*shape[:-1], shape[-1] // 2, dtype=torch.uint8)
    return Codebook(torch.bfloat16, codes, scales, table, 32)


def nf4(*shape: int) -> Codebook:
    """As bitsandbytes': a table, groups of 64."""
    scales = meta(*shape[:-1], shape[-1] // 64, dtype=torch.float32)
    codes = meta(*shape[:-1], shape[-1] // 2, dtype=torch.uint8)
    return Codebook(torch.bfloat16, codes, scales, tuple(map(float, range(16))), 64)


def fp8_rows(*shape: int) -> ScaledFp8:
    """As LLM Compressor's: floats of 8 bits on both sides, a scale to a row of either."""
    scales = meta(*shape[:-1], 1, dtype=torch.float32)
    numbers = meta(*shape, dtype=torch.float8_e4m3fn)
    return ScaledFp8(torch.bfloat16, numbers, scales, shape[-1], shape[-1])


def fp8_runs(*shape: int) -> ScaledFp8:
    """As DeepSeek's: scales for blocks of weights and for 128 inputs of a row."""
    return replace(fp8_blocks(*shape), row_group=128)


def w8a8(*shape: int) -> ChannelInt8:
    """Whole numbers on both sides."""
    scales = meta(*shape[:-1], 1, dtype=torch.float32)
    return ChannelInt8(torch.bfloat16, meta(*shape, dtype=torch.int8), scales)


WEIGHTS: Final[Mapping[str, Callable[..., Quantised]]] = {
    "int4": int4,
    "Q4_K": q4_k,
    "int8": int8,
    "FP8": fp8_blocks,
    "MXFP4": mxfp4,
    "NF4": nf4,
    "W8A8": w8a8,
    "FP8 x FP8": fp8_rows,
    "FP8 x FP8 in blocks": fp8_runs,
}
