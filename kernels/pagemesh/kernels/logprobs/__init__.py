"""Log probabilities of tokens and of the likeliest ones, without those of the whole vocabulary.

The plain definition, `score_rows`, serves the CPU; on a device that the host does not wait for it is a
`TokenScorer`.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.logprobs.interface import MAX_TOP, TokenScorer, TokenScores
from pagemesh.kernels.logprobs.reference import score_rows

__all__ = ["MAX_TOP", "TokenScorer", "TokenScores", "make_token_scorer", "score_rows"]


def make_token_scorer(device: torch.device) -> TokenScorer:
    """A scorer in Triton."""
    from pagemesh.kernels.logprobs.cuda import CudaTokenScorer

    return CudaTokenScorer(device)
