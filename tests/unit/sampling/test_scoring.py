from __future__ import annotations

import math

import torch

from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.scoring import score_tokens


def close(first: TokenLogprobs, second: TokenLogprobs) -> bool:
    exact = (first.token_id, first.rank, first.top_token_ids)
    return exact == (second.token_id, second.rank, second.top_token_ids) and all(
        abs(a - b) < 1e-6
        for a, b in zip(
            (first.logprob, *first.top_logprobs),
            (second.logprob, *second.top_logprobs),
            strict=True,
        )
    )


def test_log_probabilities_and_ranks_are_those_of_the_softmax() -> None:
    probabilities = [0.1, 0.4, 0.2, 0.3]
    logits = torch.tensor([[math.log(p) + 7.0 for p in probabilities]])
    (score,) = score_tokens(logits, [2], [2])
    expected = TokenLogprobs(2, math.log(0.2), 3, (1, 3), (math.log(0.4), math.log(0.3)))
    assert close(score, expected)


def test_each_row_has_as_many_rivals_as_it_asks_for() -> None:
    logits = torch.randn(4, 50)
    scores = score_tokens(logits, [3, 4, 5, 6], [0, 5, 50, 1])
    assert [len(score.top_token_ids) for score in scores] == [0, 5, 50, 1]
    for row, (score, count) in enumerate(zip(scores, [0, 5, 50, 1], strict=True)):
        (alone,) = score_tokens(logits[row : row + 1], [score.token_id], [count])
        assert close(score, alone)
        assert (
            list(score.top_token_ids) == logits[row].sort(descending=True).indices[:count].tolist()
        )


def test_equal_logits_are_named_in_order_of_their_ids() -> None:
    logits = torch.tensor([[1.0, 3.0, -0.0, 3.0, 0.0, 1.0, 3.0, -2.0]])
    (score,) = score_tokens(logits, [3], [7])
    assert score.top_token_ids == (1, 3, 6, 0, 5, 2, 4)
    assert score.rank == 3
    assert score_tokens(logits, [3], [2])[0].top_token_ids == (1, 3)


def test_impossible_tokens_come_last() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, -5.0]])
    (score,) = score_tokens(logits, [2], [4])
    assert score.top_token_ids == (1, 3, 0, 2)
    assert score.logprob == -math.inf
