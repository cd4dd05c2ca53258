from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.logprobs import score_rows
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.plan import Scores
from pagemesh.sampling.sampler import Sampler
from tests.support.tolerances import float32_tolerance
from tests.unit.sampling.sampled import CPU, accelerator_of, make_row, sample_on, sampler_on


def score(logits: torch.Tensor, token_ids: list[int], num_top: int) -> list[TokenLogprobs]:
    """On the CPU."""
    return Sampler(logits.shape[1], CPU).score(logits, token_ids, num_top).read().logprobs


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
    (scored,) = score(logits, [2], 2)
    expected = TokenLogprobs(2, math.log(0.2), 3, (1, 3), (math.log(0.4), math.log(0.3)))
    assert close(scored, expected)


def test_each_row_has_as_many_rivals_as_it_asks_for() -> None:
    logits = torch.randn(5, 50)
    counts = [0, 5, 20, 1, None]
    rows = [make_row(i, temperature=0.0, logprobs=count) for i, count in enumerate(counts)]
    scores = sample_on(CPU, logits, rows).logprobs
    assert list(scores) == ["r0", "r1", "r2", "r3"]
    for row, (scored, count) in enumerate(zip(scores.values(), counts[:4], strict=True)):
        assert scored.token_id == int(logits[row].argmax())
        (alone,) = score(logits[row : row + 1], [scored.token_id], count or 0)
        assert close(scored, alone)
        likeliest = logits[row].sort(descending=True).indices[:count].tolist()
        assert list(scored.top_token_ids) == likeliest


def test_equal_logits_are_named_in_order_of_their_ids() -> None:
    logits = torch.tensor([[1.0, 3.0, -0.0, 3.0, 0.0, 1.0, 3.0, -2.0]])
    (scored,) = score(logits, [3], 7)
    assert scored.top_token_ids == (1, 3, 6, 0, 5, 2, 4)
    assert scored.rank == 3
    assert score(logits, [3], 2)[0].top_token_ids == (1, 3)


def test_impossible_tokens_come_last() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, -5.0]])
    (scored,) = score(logits, [2], 4)
    assert scored.top_token_ids == (1, 3, 0, 2)
    assert scored.logprob == -math.inf


def scores_on(
    device: torch.device, logits: torch.Tensor, token_ids: list[int], num_top: int
) -> Scores:
    accelerator = accelerator_of(device)
    with accelerator.computing():
        sampler = sampler_on(accelerator, logits.shape[1])
        return sampler.score(logits.to(device), token_ids, num_top).read()


@pytest.mark.parametrize("num_top", [0, 3, 20])
@pytest.mark.parametrize("vocab_size", [7, 90, 2500])
def test_prompts_are_scored_alike_everywhere(
    device: torch.device, vocab_size: int, num_top: int
) -> None:
    logits = (torch.randn(3, vocab_size) * 3).round(decimals=1)
    logits[1, 1:6] = -math.inf
    token_ids = [6, 0, vocab_size - 1]
    scores = scores_on(device, logits, token_ids, num_top)
    assert scores.are_finite
    plain = score_rows(logits, torch.tensor(token_ids), min(num_top, vocab_size))
    for row, scored in enumerate(scores.logprobs):
        assert len(scored.top_token_ids) == min(num_top, vocab_size)
        assert (scored.token_id, scored.rank) == (token_ids[row], int(plain.ranks[row]))
        assert list(scored.top_token_ids) == plain.top_ids[row].tolist()
        values = (scored.logprob, *scored.top_logprobs)
        others = (float(plain.logprobs[row]), *plain.top_logprobs[row].tolist())
        assert values == pytest.approx(others, abs=float32_tolerance(device))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_of_logits_that_are_not_finite_are_known(device: torch.device, bad: float) -> None:
    logits = torch.randn(2, 90)
    assert scores_on(device, logits, [1, 2], 2).are_finite
    logits[1, 89] = bad
    assert not scores_on(device, logits, [1, 2], 2).are_finite
    assert not scores_on(device, torch.full((1, 90), -math.inf), [1], 2).are_finite


def test_scores_of_a_row_do_not_depend_on_the_others(device: torch.device) -> None:
    logits = torch.randn(4, 3000).bfloat16()
    together = scores_on(device, logits, [5, 6, 7, 8], 5).logprobs
    for row in range(4):
        assert (
            scores_on(device, logits[row:], [5 + row] * (4 - row), 5).logprobs[0] == together[row]
        )


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_row_of_a_large_vocabulary_scores_alone_as_among_others(num_threads: int) -> None:
    logits, token_ids = torch.randn(40, 49_152) * 3, list(range(40))
    together = score(logits, token_ids, 2)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        alone = [score(logits[row : row + 1], [row], 2)[0] for row in token_ids]
    finally:
        torch.set_num_threads(threads_before)
    assert alone == together
