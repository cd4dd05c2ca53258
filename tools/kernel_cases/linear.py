"""Products of Llama 3 8B, and of other models what is cut differently."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear
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
