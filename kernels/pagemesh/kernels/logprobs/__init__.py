"""Log probabilities of tokens and of the likeliest ones, without those of the whole vocabulary.

The plain definition, `score_rows`, serves the CPU.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.logprobs.interface import (
    MAX_TOP,
    PlainTokenScorer,
    TokenScorer,
    TokenScores,
    score_rows,
)

__all__ = ["MAX_TOP", "TokenScorer", "TokenScores", "make_token_scorer", "score_rows"]


def make_token_scorer(device: torch.device) -> TokenScorer:
    """The scorer for logits on a device; its calls follow each other on one stream."""
    match backend_for("logprobs", device):
        case "cpu" | "reference":
            return PlainTokenScorer()
        case "cuda":
            # Imported here because Triton takes seconds.
            from pagemesh.kernels.logprobs.cuda import CudaTokenScorer

            return CudaTokenScorer(device)
