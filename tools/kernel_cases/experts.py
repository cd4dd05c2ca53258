"""Mixtures: Mixtral 8x7B, Qwen 3 30B-A3B and GPT-OSS 20B."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.expert_choice import Choices
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.gated_activation import Gate
from pagemesh.kernels.linear import Dense
from tools.kernel_cases.case import Case, meta
from tools.kernel_cases.linear import fp8_runs, int4, mxfp4, w8a8


def cases() -> Iterator[Case]:
    """One token, a batch and a long prompt."""
    clamped = Gate("clamped_swiglu", 7.0, 1.702)
    for name, num_experts, hidden_size, size, num_choices, gate, has_bias in (
        ("Mixtral", 8, 4096, 14336, 2, Gate("silu"), False),
        ("Qwen 3 30B", 128, 2048, 768, 8, Gate("silu"), False),
        ("GPT-OSS 20B", 32, 2880, 2880, 4, clamped, True),
    ):
        experts = make_experts(
            Stack(
                Dense(meta(num_experts, 2 * size, hidden_size)),
                meta(num_experts, 2 * size) if has_bias else None,
            ),
            Stack(
                Dense(meta(num_experts, hidden_size, size)),
                meta(num_experts, hidden_size) if has_bias else None,
            ),
            gate,
        )
        for num_tokens in (1, 128, 8192):
            hidden = meta(num_tokens, hidden_size)
            choices = Choices(
                meta(num_tokens, num_choices), meta(num_tokens, num_choices, dtype=torch.int64)
            )
            yield Case(
                f"{name}, T = {num_tokens}",
                partial(experts.add_to, hidden, hidden, choices),
            )
    yield from _quantised_cases()


def _quantised_cases() -> Iterator[Case]:
    """GPT-OSS 20B as it is published, and Qwen 3 30B in two ways."""
    clamped = Gate("clamped_swiglu", 7.0, 1.702)
    gpt_oss = make_experts(
        Stack(mxfp4(32, 5760, 2880), meta(32, 5760)),
        Stack(mxfp4(32, 2880, 2880), meta(32, 2880)),
        clamped,
    )
    qwen = {
        f"Qwen 3 30B in {name}": make_experts(
            Stack(make(128, 1536, 2048), None), Stack(make(128, 2048, 768), None), Gate("silu")
        )
        for name, make in (("int4", int4), ("W8A8", w8a8), ("FP8 x FP8 in blocks", fp8_runs))
    }
    for name, experts, num_choices in (
        ("GPT-OSS 20B in MXFP4", gpt_oss, 4),
        *((name, experts, 8) for name, experts in qwen.items()),
    ):
        for num_tokens in (1, 128, 8192):
            hidden = meta(num_tokens, 2880 if num_choices == 4 else 2048)
            choices = Choices(
                meta(num_tokens, num_choices), meta(num_tokens, num_choices, dtype=torch.int64)
            )
            yield Case(
                f"{name}, T = {num_tokens}", partial(experts.add_to, hidden, hidden, choices)
            )
