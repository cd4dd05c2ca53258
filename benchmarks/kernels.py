"""How fast are the CPU's kernels against torch's own operations? On a layer of a model of 160M parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from report import Report, arguments
from torch.nn import functional

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.linear import Linear, make_linear
from pagemesh.kernels.linear.packed import PackedLinear, can_pack
from pagemesh.kernels.linear.plain import PlainLinear
from pagemesh.kernels.paged_attention import (
    AttentionShape,
    LayerAttention,
    PagedSequence,
    make_paged_attention,
)
from pagemesh.kernels.rms_norm import make_rms_norm

QUESTION = "The CPU's kernels against torch's operations, one layer of a model of 160M parameters"
LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 12, 768, 2048, 12, 4, 64, 16
CPU = torch.device("cpu")
Contender = Callable[[], object]


def products(dtype: torch.dtype, num_tokens: int) -> tuple[Contender, Contender]:
    """The largest projection."""
    weight = torch.randn(2 * INTERMEDIATE, HIDDEN).to(dtype)
    inputs = torch.randn(num_tokens, HIDDEN).to(dtype)
    ours, theirs = make_linear(weight), PlainLinear(weight, None)
    return lambda: ours(inputs), lambda: theirs(inputs)


def packed_products(num_tokens: int) -> tuple[Contender, Contender]:
    """The same in bfloat16, against oneDNN with a packed weight; weights change, as they do in a step."""
    weights = [torch.randn(2 * INTERMEDIATE, HIDDEN).bfloat16() for _ in range(LAYERS)]
    inputs = torch.randn(num_tokens, HIDDEN).bfloat16()
    ours = [make_linear(one) for one in weights]
    theirs = [PackedLinear(one, None) for one in weights]

    def multiply(linears: Sequence[Linear]) -> None:
        for linear in linears:
            linear(inputs)

    return lambda: multiply(ours), lambda: multiply(theirs)


def attention(
    dtype: torch.dtype, num_sequences: int, num_queries: int, context: int
) -> tuple[Contender, Contender]:
    """Against copying the blocks together for torch's fused attention, causal mask included."""
    per_sequence = -(-context // BLOCK)
    num_blocks = num_sequences * per_sequence
    kv = torch.randn(2, num_blocks, BLOCK, KV_HEADS, HEAD_DIM).to(dtype)
    tables = torch.randperm(num_blocks).view(num_sequences, per_sequence)
    query = torch.randn(num_sequences * num_queries, HEADS, HEAD_DIM).to(dtype)
    features = LayerAttention(HEAD_DIM**-0.5)
    shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, num_blocks, BLOCK, dtype)
    sequences = [PagedSequence(num_queries, context, table.tolist()) for table in tables]
    plan = make_paged_attention(shape, CPU).plan(sequences)
    mask = torch.full((num_queries, context), -torch.inf, dtype=dtype)
    mask.triu_(context - num_queries + 1)

    def gather() -> torch.Tensor:
        keys, values = (
            half[tables].view(num_sequences, -1, KV_HEADS, HEAD_DIM)[:, :context].transpose(1, 2)
            for half in kv
        )
        heads = query.view(num_sequences, num_queries, HEADS, HEAD_DIM).transpose(1, 2)
        return functional.scaled_dot_product_attention(
            heads, keys, values, attn_mask=mask, enable_gqa=True
        )

    return lambda: plan.attend(query, kv, features), gather


def rows(dtype: torch.dtype, num_tokens: int) -> tuple[Contender, Contender]:
    """A norm and a gated activation."""
    hidden, gate_up = (
        torch.randn(num_tokens, size).to(dtype) for size in (HIDDEN, 2 * INTERMEDIATE)
    )
    weight = torch.ones(HIDDEN)
    norm, activate = make_rms_norm(weight, 1e-6), make_gated_activation(Gate("silu"), CPU)
    short_weight = weight.to(dtype)

    def by_torch() -> torch.Tensor:
        functional.rms_norm(hidden, (HIDDEN,), short_weight, 1e-6)
        gates, ups = gate_up.chunk(2, -1)
        return functional.silu(gates) * ups

    return lambda: (norm(hidden), activate(gate_up)), by_torch


def main() -> None:
    """Time both sides of each pair in turn."""
    quick, path = arguments("kernels", QUESTION)
    report = Report("kernels", QUESTION, {"threads": torch.get_num_threads()})
    for dtype in (torch.float32, torch.bfloat16):
        pairs = {
            "product, 1 token": products(dtype, 1),
            "product, 8 tokens": products(dtype, 8),
            "product, 512 tokens": products(dtype, 512),
            "attention, 1 decode of 512": attention(dtype, 1, 1, 512),
            "attention, 32 decodes of 512": attention(dtype, 32, 1, 512),
            "attention, chunk of 512 behind 512": attention(dtype, 1, 512, 1024),
            "norm and activation, 1 token": rows(dtype, 1),
            "norm and activation, 512 tokens": rows(dtype, 512),
        }
        for name, (ours, theirs) in pairs.items():
            times = interleaved(ours, theirs, num_rounds=5 if quick else 30)
            label = f"{str(dtype).removeprefix('torch.')} {name}"
            report.add(label, "us", times[0])
            report.add(f"{label}: torch", "us", times[1])
    if can_pack(torch.empty(1, 1, dtype=torch.bfloat16)):
        for num_tokens in (1, 8, 16, 32, 512):
            times = interleaved(*packed_products(num_tokens), num_rounds=5 if quick else 30)
            label = f"bfloat16 product in all layers, {num_tokens} tokens"
            report.add(label, "us", times[0])
            report.add(f"{label}: oneDNN", "us", times[1])
    report.print()
    report.write(path)


@torch.inference_mode()
def interleaved(ours: Contender, theirs: Contender, num_rounds: int) -> tuple[list[float], ...]:
    """Microseconds of both sides, round by round; the first round is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(num_rounds + 1):
        for side, samples in zip((ours, theirs), times, strict=True):
            started = time.perf_counter()
            side()
            samples.append((time.perf_counter() - started) * 1e6)
    return times[0][1:], times[1][1:]


if __name__ == "__main__":
    main()
