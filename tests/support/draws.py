"""The plain definition of draws: what is chosen of rows of logits that are edited already."""

from __future__ import annotations

import torch

from pagemesh.kernels.sampling.cpu_draw import DrawParameters


def draw_tokens(logits: torch.Tensor, parameters: DrawParameters) -> list[int]:
    """Of logits [R, vocab], each row of which has a finite maximum."""
    return [
        _draw_token(row.double(), *asked) for row, *asked in zip(logits, *parameters, strict=True)
    ]


def _draw_token(
    logits: torch.Tensor, temperature: float, top_k: int, min_p: float, top_p: float, draw: float
) -> int:
    scores = (logits - logits.max()) / temperature
    weights = scores.exp()
    if 0 < top_k < len(scores):
        weights[scores < scores.topk(int(top_k)).values[-1]] = 0.0
    weights[weights < min_p] = 0.0
    if top_p < 1.0:
        likeliest = weights.sort(descending=True).values
        before = likeliest.cumsum(0) - likeliest
        num_kept = int((before < top_p * weights.sum()).sum())
        weights[weights < likeliest[num_kept - 1]] = 0.0
    sums = weights.cumsum(0)
    return int((sums <= draw * sums[-1]).sum())
