"""Choices of mixtures: Mixtral 8x7B, Qwen 3 30B-A3B, GPT-OSS 20B and Qwen 2 57B-A14B."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.expert_choice import make_expert_choice
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """One token, the most that one program sorts, and a long prompt."""
    for name, num_experts, num_chosen, normalize in (
        ("Mixtral", 8, 2, True),
        ("Qwen 3 30B", 128, 8, True),
        ("GPT-OSS 20B", 32, 4, True),
        ("Qwen 2 57B", 64, 8, False),
    ):
        choose = make_expert_choice(num_chosen, torch.device("meta"), normalize=normalize)
        for num_tokens in (1, 64, 8192):
            logits = meta(num_tokens, num_experts)
            yield Case(f"{name}, T = {num_tokens}", partial(choose, logits))
