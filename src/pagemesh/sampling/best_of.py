"""Which of several finished answers to one prompt are given: `n` of `best_of`. No torch."""

from __future__ import annotations

from collections.abc import Sequence


def best_answers(cumulative_logprobs: Sequence[float], n: int) -> list[int]:
    """Indices of the `n` answers with the highest cumulative log probability, best first.

    As vLLM ranks them: by the sum and not by the mean, so that of equally probable tokens fewer are
    better. Of equal answers the earlier one comes first; all answers, when there are no more than `n`.
    """
    ranked = sorted(
        range(len(cumulative_logprobs)), key=cumulative_logprobs.__getitem__, reverse=True
    )
    return ranked[:n]
