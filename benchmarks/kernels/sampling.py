"""Choosing and scoring tokens: the logits are read once, everything else is small.

"torch" is what engines write without kernels of their own: sort, cumulate, mask, draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from contest import Contest

from pagemesh.kernels.logprobs import TokenScores, make_token_scorer
from pagemesh.kernels.sampling import SamplingPlan, make_token_chooser

ITEM = 2
NUM_TOP = 5
VOCAB_SIZES = {"cpu": 32_000, "cuda": 128_256}


class Kind(NamedTuple):
    """One way to sample, the same for all rows."""

    name: str
    temperature: float
    top_k: int = 0
    top_p: float = 1.0


KINDS = (
    Kind("greedy", 0.0),
    Kind("without limits", 1.0),
    Kind("top-p 0.95", 1.0, top_p=0.95),
    Kind("top-k 50 and top-p 0.95", 1.0, 50, 0.95),
)


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Each kind alone, and log probabilities of the chosen and the five likeliest tokens."""
    vocab_size = VOCAB_SIZES[device.type]
    many = 256 if device.type == "cuda" else 16
    for num_rows in (1, many) if quick or device.type == "cpu" else (1, 64, many):
        # As of a language model: few tokens stand out.
        logits = torch.randn(num_rows, vocab_size, device=device) * 2.5
        logits[:, : vocab_size // 100] += 6
        logits = logits.bfloat16()
        for kind in KINDS:
            yield Contest(
                f"{kind.name}, {num_rows} rows of {vocab_size}",
                logits.numel() * ITEM,
                2.0 * logits.numel(),
                {"ours": choosing(logits, kind), "torch": partial(choose_by_torch, logits, kind)},
            )
        token_ids = torch.zeros(num_rows, dtype=torch.int64, device=device)
        yield Contest(
            f"log probabilities, {num_rows} rows of {vocab_size}",
            logits.numel() * ITEM,
            3.0 * logits.numel(),
            {
                "ours": scoring(logits, token_ids),
                "torch": partial(score_by_torch, logits, token_ids),
            },
        )


def choosing(logits: torch.Tensor, kind: Kind) -> Callable[[], object]:
    """Our way on the logits' device."""
    num_rows, vocab_size = logits.shape
    choose = make_token_chooser(vocab_size, logits.device)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    flags = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    plan = make_plan(logits, kind) if kind.temperature > 0.0 else None
    return partial(choose, logits, plan, token_ids, flags)


def make_plan(logits: torch.Tensor, kind: Kind) -> SamplingPlan:
    num_rows, vocab_size = logits.shape
    full = partial(torch.full, (num_rows,), device=logits.device)
    empty = partial(torch.empty, device=logits.device)
    return SamplingPlan(
        temperatures=full(fill_value=kind.temperature, dtype=torch.float64),
        top_ps=full(fill_value=kind.top_p, dtype=torch.float64),
        min_ps=full(fill_value=0.0, dtype=torch.float64),
        seeds=torch.arange(num_rows, device=logits.device),
        positions=torch.arange(num_rows, device=logits.device),
        top_ks=full(fill_value=kind.top_k, dtype=torch.int32),
        drawn_rows=torch.arange(num_rows, dtype=torch.int32, device=logits.device),
        edit_slots=full(fill_value=-1, dtype=torch.int32),
        penalties=empty(0, 3),
        entry_bounds=empty(0, 5, dtype=torch.int32),
        entry_ids=empty(0, dtype=torch.int32),
        entry_values=empty(0),
        mask_rows=empty(0, dtype=torch.int32),
        masks=empty(0, -(-vocab_size // 32), dtype=torch.int32),
    )


def choose_by_torch(logits: torch.Tensor, kind: Kind) -> torch.Tensor:
    if kind.temperature == 0.0:
        return logits.argmax(-1)
    scores = logits.float() / kind.temperature
    if kind.top_k == 0 and kind.top_p == 1.0:
        return torch.multinomial(scores.softmax(-1), 1)
    ordered, ids = scores.sort(-1, descending=True)
    if kind.top_k:
        ordered[:, kind.top_k :] = -torch.inf
    probabilities = ordered.softmax(-1)
    probabilities[probabilities.cumsum(-1) - probabilities >= kind.top_p] = 0.0
    return ids.gather(1, torch.multinomial(probabilities, 1))


def scoring(logits: torch.Tensor, token_ids: torch.Tensor) -> Callable[[], object]:
    """Our way on the logits' device."""
    num_rows = len(logits)
    empty = partial(torch.empty, device=logits.device)
    scores = TokenScores(
        norms=empty(num_rows),
        logprobs=empty(num_rows),
        ranks=empty(num_rows, dtype=torch.int32),
        top_ids=empty(num_rows, NUM_TOP, dtype=torch.int32),
        top_logprobs=empty(num_rows, NUM_TOP),
    )
    rows = torch.arange(num_rows, dtype=torch.int32, device=logits.device)
    return partial(make_token_scorer(logits.device), logits, rows, token_ids, scores)


def score_by_torch(logits: torch.Tensor, token_ids: torch.Tensor) -> object:
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, token_ids[:, None])
    return chosen, (logprobs >= chosen).sum(-1), logprobs.topk(NUM_TOP, -1)
