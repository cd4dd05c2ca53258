"""Experts of a mixture, packed ones too, beside those of transformers (torch's products of groups of rows).

Bytes: the weights of each expert that a token chose, what goes in and what comes out, each once. Flops: two for every
pair of a choice and a weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from contest import Contest
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from pagemesh.kernels.expert_choice.interface import Choices
from pagemesh.kernels.experts import Experts, Stack, make_experts
from pagemesh.kernels.gated_activation import Gate
from pagemesh.kernels.linear import Dense
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.ways import Rounding

ITEM = 2
INT4_BITS = 5
"""With a scale and a minimum to 32 inputs."""
NUM_EXPERTS, NUM_CHOICES = 32, 4
SIZES = {"cpu": (1024, 512), "cuda": (4096, 1536)}
"""Hidden and inner."""


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """One token, some and many."""
    hidden, inner = SIZES[device.type]
    theirs = _transformers(hidden, inner, device)
    ups, downs = theirs.gate_up_proj.data, theirs.down_proj.data
    ours = make_experts(Stack(Dense(ups), None), Stack(Dense(downs), None), Gate("silu"))
    packed = _int4(ups, downs)
    for num_tokens in (1, 64) if quick else (1, 8, 64, 512):
        tokens = torch.randn(num_tokens, hidden, device=device).bfloat16()
        chosen = torch.rand(num_tokens, NUM_EXPERTS, device=device).argsort(1)[:, :NUM_CHOICES]
        choices = Choices(torch.rand(chosen.shape, device=device), chosen.contiguous())
        num_used, num_weights = len(set(chosen.flatten().tolist())), 3 * hidden * inner
        name = f"{NUM_CHOICES} of {NUM_EXPERTS} experts, {num_tokens} tokens"
        in_and_out = 2 * num_tokens * hidden * ITEM
        num_flops = 2.0 * chosen.numel() * num_weights
        run, run_packed = (partial(each, tokens, choices) for each in (ours, packed))
        run_theirs = partial(theirs, tokens, choices.experts, choices.weights)
        yield Contest(
            name,
            num_used * num_weights * ITEM + in_and_out,
            num_flops,
            {"ours": run, "transformers": run_theirs},
        )
        yield Contest(
            f"{name}, int4",
            num_used * num_weights * INT4_BITS / 8 + in_and_out,
            num_flops,
            {"ours": run_packed, "pagemesh, bfloat16": run, "transformers": run_theirs},
        )


def _transformers(hidden: int, inner: int, device: torch.device) -> Any:
    config = MixtralConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=NUM_CHOICES,
    )
    config._experts_implementation = "grouped_mm"
    experts: Any = MixtralExperts(config).to(device, torch.bfloat16)
    for parameter in experts.parameters():
        parameter.data.normal_(0, 0.02)
    return experts.requires_grad_(False)


def _int4(ups: torch.Tensor, downs: torch.Tensor) -> Experts:
    rounded = (round_weight(each, Rounding("int4", 32), torch.bfloat16) for each in (ups, downs))
    up_codes, down_codes = rounded
    return make_experts(Stack(up_codes, None), Stack(down_codes, None), Gate("silu"))
