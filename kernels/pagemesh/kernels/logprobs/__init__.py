"""Log probabilities of tokens and of the likeliest ones, without those of the whole vocabulary.

The plain definition, `score_rows`, serves the CPU; on a device that the host does not wait for it is a
`TokenScorer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pagemesh.kernels.logprobs.interface import MAX_TOP, TokenScores, score_rows

if TYPE_CHECKING:
    from pagemesh.kernels.logprobs.cuda import TokenScorer

__all__ = ["MAX_TOP", "TokenScores", "make_token_scorer", "score_rows"]


def make_token_scorer(device: torch.device) -> TokenScorer:
    """A scorer in Triton."""
    # Imported here because Triton takes seconds.
    from pagemesh.kernels.logprobs.cuda import TokenScorer

    return TokenScorer(device)
