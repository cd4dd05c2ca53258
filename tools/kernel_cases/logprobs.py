"""Log probabilities of tokens, for vocabularies of Llama 2, Llama 3 and Gemma."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.logprobs import TokenScores
from pagemesh.kernels.logprobs.cuda import CudaTokenScorer
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """A token alone, and with as many of the likeliest as are reported at most."""
    score = CudaTokenScorer(torch.device("meta"))
    rows, token_ids = meta(8, dtype=torch.int32), meta(8, dtype=torch.int64)
    for vocab_size in (32_000, 128_256, 262_144):
        logits = meta(8, vocab_size)
        for num_top in (0, 20):
            name = f"of {vocab_size}, {num_top} likeliest"
            yield Case(name, partial(score, logits, rows, token_ids, _scores(8, num_top)))


def _scores(num_rows: int, num_top: int) -> TokenScores:
    return TokenScores(
        norms=meta(num_rows, dtype=torch.float32),
        logprobs=meta(num_rows, dtype=torch.float32),
        ranks=meta(num_rows, dtype=torch.int32),
        top_ids=meta(num_rows, num_top, dtype=torch.int32),
        top_logprobs=meta(num_rows, num_top, dtype=torch.float32),
    )
