from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from pagemesh.errors import InvalidRequestError
from pagemesh.kernels.sampling import cpu
from pagemesh.kernels.sampling.interface import uniform_draws
from pagemesh.sampling import sampler
from pagemesh.sampling.params import SamplingParams
from tests.unit.sampling.sampled import (
    CPU,
    fewer,
    ids_on,
    make_row,
    make_ruled_row,
    mixed_rows,
    sample_on,
)

NAN, INF = math.nan, math.inf


def plain_choice(logits: list[float], params: SamplingParams, position: int) -> int:
    """The definition, with Python's own floats, sorts and loops."""
    scores = [value / params.temperature for value in logits]
    kept = sorted(range(len(scores)), key=lambda token: -scores[token])
    if params.top_k:
        kth = scores[kept[min(params.top_k, len(kept)) - 1]]
        kept = [token for token in kept if scores[token] >= kth]
    weights = {token: math.exp(scores[token] - max(scores)) for token in kept}
    kept = [token for token in kept if weights[token] >= params.min_p]
    weights = {token: weights[token] for token in kept}
    nucleus: list[int] = []
    total, gathered = sum(weights.values()), 0.0
    for token in kept:
        if gathered >= params.top_p * total and weights[token] < weights[nucleus[-1]]:
            break
        nucleus.append(token)
        gathered += weights[token]
    target = uniform_draws([params.seed], [position])[0] * sum(weights[t] for t in nucleus)
    for token in sorted(nucleus):
        target -= weights[token]
        if target < 0:
            return token
    raise AssertionError("the draw lies beyond the last token")


def test_greedy_takes_the_most_likely_token_and_the_first_of_equals(device: torch.device) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 0.0], [-1.0, -2.0, -INF]])
    assert ids_on(device, logits, [make_row(temperature=0.0)] * 3) == [1, 0, 0]


@pytest.mark.product
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.5, "top_k": 7},
        {"top_p": 0.6},
        {"top_p": 0.05},
        {"temperature": 1.5, "top_k": 40, "top_p": 0.9},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"temperature": 1.7, "min_p": 0.3, "top_k": 9, "top_p": 0.7},
        {"top_k": 1},
        {"top_k": 5000},
        {"temperature": 1e-4},
    ],
    ids=str,
)
def test_choices_equal_the_plain_definition(device: torch.device, params: dict[str, Any]) -> None:
    num_rows = fewer(device, 40)
    logits = torch.randn(num_rows, 67) * 3
    rows = [make_row(position, seed=11, **params) for position in range(num_rows)]
    expected = [
        plain_choice(values, row.params, row.position)
        for values, row in zip(logits.double().tolist(), rows, strict=True)
    ]
    assert ids_on(device, logits, rows) == expected


def test_a_nucleus_wider_than_the_likely_tokens_is_exact(device: torch.device) -> None:
    # Nearly flat over 1300 tokens: 90 % of the mass needs more than the first 512 of them.
    num_rows = fewer(device, 12)
    logits = torch.randn(num_rows, 1300) * 0.01
    rows = [make_row(position, seed=3, top_p=0.9) for position in range(num_rows)]
    expected = [
        plain_choice(values, row.params, row.position)
        for values, row in zip(logits.double().tolist(), rows, strict=True)
    ]
    assert ids_on(device, logits, rows) == expected


def drawn_tokens(logits: list[float], num_draws: int, **params: Any) -> Counter[int]:
    rows = [make_row(position, seed=5, **params) for position in range(num_draws)]
    return Counter(ids_on(CPU, torch.tensor([logits]).repeat(num_draws, 1), rows))


def test_frequencies_follow_the_softmax() -> None:
    probabilities = [0.4, 0.3, 0.15, 0.1, 0.04, 0.01]
    counts = drawn_tokens([math.log(p) for p in probabilities], 10_000)
    chi_square = sum(
        (counts[token] - 10_000 * p) ** 2 / (10_000 * p) for token, p in enumerate(probabilities)
    )
    assert chi_square < 20.5  # 5 degrees of freedom: 0.1 % of samples are above


def test_frequencies_follow_the_temperature() -> None:
    # Temperature 1/2 squares the odds: 2 to 1 becomes 4 to 1.
    counts = drawn_tokens([math.log(2.0), 0.0], 10_000, temperature=0.5)
    assert abs(counts[0] - 8000) < 132  # 3.3 standard deviations of 40


def test_top_k_keeps_exactly_the_highest() -> None:
    assert set(drawn_tokens([0.0, 0.3, 0.1, 0.2, -0.1], 500, top_k=2)) == {1, 3}


def test_top_k_keeps_tokens_equal_to_the_last_kept() -> None:
    assert set(drawn_tokens([0.0, 0.3, 0.1, 0.1, -0.1], 500, top_k=2)) == {1, 2, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logits = [math.log(p) for p in (0.1, 0.5, 0.15, 0.25)]
    assert set(drawn_tokens(logits, 500, top_p=0.74)) == {1, 3}
    assert set(drawn_tokens(logits, 500, top_p=0.76)) == {1, 2, 3}
    assert set(drawn_tokens(logits, 500, top_p=0.4)) == {1}


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    # Of {0.5, 0.25} the first alone has two thirds.
    logits = [math.log(p) for p in (0.1, 0.5, 0.15, 0.25)]
    assert set(drawn_tokens(logits, 500, top_k=2, top_p=0.6)) == {1}


def test_min_p_is_relative_to_the_likeliest_token() -> None:
    logits = [math.log(p) for p in (0.1, 0.5, 0.15, 0.25)]
    assert set(drawn_tokens(logits, 500, min_p=0.26)) == {1, 2, 3}
    assert set(drawn_tokens(logits, 500, min_p=0.34)) == {1, 3}


def test_min_p_looks_at_what_the_temperature_made_of_it() -> None:
    # At temperature 1/2 the odds of 1 to 2 are 1 to 4.
    logits = [0.0, math.log(2.0)]
    assert set(drawn_tokens(logits, 500, min_p=0.4)) == {0, 1}
    assert set(drawn_tokens(logits, 500, min_p=0.4, temperature=0.5)) == {1}


def test_top_p_counts_the_mass_that_min_p_left() -> None:
    # Of {0.5, 0.25} the first alone has two thirds.
    logits = [math.log(p) for p in (0.1, 0.5, 0.15, 0.25)]
    assert set(drawn_tokens(logits, 500, min_p=0.34, top_p=0.6)) == {1}


def test_a_token_depends_on_seed_and_position_and_not_on_the_row() -> None:
    logits = torch.randn(1, 500).repeat(30, 1)
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 50},
        {"temperature": 1.3, "top_p": 0.9},
    ]
    rows = [make_row(position, seed=9, **kinds[position % 3]) for position in range(30)]
    together = ids_on(CPU, logits.clone(), rows)
    assert [ids_on(CPU, logits[:1].clone(), [row])[0] for row in rows] == together
    assert ids_on(CPU, logits.clone(), rows[::-1]) == together[::-1]
    assert len(set(together)) > 10
    other_seed = [make_row(row.position, seed=8) for row in rows]
    assert ids_on(CPU, logits.clone(), other_seed) != together


def test_greedy_and_drawn_rows_mix(device: torch.device) -> None:
    logits = torch.randn(4, 90)
    mixed = [make_row(0, temperature=0.0), make_row(1), make_row(2, temperature=0.0), make_row(3)]
    expected = [ids_on(device, logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(mixed)]
    assert ids_on(device, logits.clone(), mixed) == expected
    assert [expected[0], expected[2]] == logits[[0, 2]].argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppressed_tokens_are_never_chosen(device: torch.device, temperature: float) -> None:
    logits = torch.tensor([[9.0, 1.0, 8.0, 0.0], [9.0, 1.0, 8.0, 0.0]])
    rows = [make_row(0, (0, 2), temperature=temperature), make_row(1, temperature=0.0)]
    ids = ids_on(device, logits, rows)
    assert ids[0] in {1, 3}
    assert ids[1] == 0


def test_low_precision_logits_are_sampled_in_full_precision(device: torch.device) -> None:
    num_rows = fewer(device, 24)
    logits = (torch.randn(num_rows, 300) * 2).bfloat16()
    rows = [make_row(position, seed=1, top_p=0.9) for position in range(num_rows)]
    assert ids_on(device, logits.clone(), rows) == ids_on(device, logits.float(), rows)


@pytest.mark.parametrize("bad", [[NAN, 1.0], [0.0, INF], [-INF, -INF]], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_fail_their_own_requests(
    device: torch.device, bad: list[float], temperature: float
) -> None:
    rows = [make_row(position, temperature=temperature) for position in range(4)]
    samples = sample_on(device, torch.tensor([[-99.0, 1.0], bad, bad, [1.0, -99.0]]), rows)
    assert (samples.token_ids[0], samples.token_ids[3]) == (1, 0)
    assert {name: error.message for name, error in samples.errors.items()} == {
        "r1": "the model gave logits that are not finite for r1",
        "r2": "the model gave logits that are not finite for r2",
    }
    assert samples.errors["r1"].reason == "LOGITS_NOT_FINITE"


def test_a_row_with_rules_does_not_depend_on_the_others(device: torch.device) -> None:
    num_rows = fewer(device, 42)
    logits = torch.randn(num_rows, 60) * 2
    rows = mixed_rows(num_rows)
    together = sample_on(device, logits.clone(), rows)
    assert together.errors == {}
    backwards = sample_on(device, logits.flip(0), rows[::-1])
    assert backwards.token_ids[::-1] == together.token_ids
    for index, row in enumerate(rows):
        alone = sample_on(device, logits[index : index + 1].clone(), [row])
        assert alone.token_ids == [together.token_ids[index]]
        assert (row.request_id in alone.logprobs) == (row.params.logprobs is not None)
        if row.params.logprobs is not None:
            assert alone.logprobs[row.request_id] == together.logprobs[row.request_id]
            assert backwards.logprobs[row.request_id] == together.logprobs[row.request_id]
    plain = sample_on(device, logits.clone(), [row._replace(rules=None) for row in rows])
    assert plain.token_ids != together.token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_words_follow_the_output(device: torch.device, temperature: float) -> None:
    logits = torch.tensor([[9.0, -9.0, 0.0]])
    params: dict[str, Any] = {
        "temperature": temperature,
        "bad_words_token_ids": ((2, 0),),
        "allowed_token_ids": (0, 2),
    }
    chosen = {
        last: ids_on(device, logits.clone(), [make_ruled_row(0, [1, last], **params)])[0]
        for last in (1, 2)
    }
    assert chosen == {1: 0, 2: 2}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_log_probabilities_are_those_of_the_logits_as_they_were(
    device: torch.device, temperature: float
) -> None:
    logits = torch.tensor([[math.log(p) for p in (0.5, 0.3, 0.2)]])
    params: dict[str, Any] = {"temperature": temperature, "logprobs": 2, "top_k": 1}
    row = make_ruled_row(0, [], logit_bias={2: 50.0}, repetition_penalty=1.5, **params)
    samples = sample_on(device, logits, [row])
    (score,) = samples.logprobs.values()
    assert (samples.token_ids, score.token_id, score.rank) == ([2], 2, 3)
    assert score.top_token_ids == (0, 1)
    values = [math.exp(value) for value in (score.logprob, *score.top_logprobs)]
    assert values == pytest.approx([0.2, 0.5, 0.3], abs=1e-6)


def test_parameters_that_leave_no_token_fail_their_own_request(device: torch.device) -> None:
    rows = [
        make_row(0, temperature=0.0),
        make_ruled_row(1, [2], (1,), allowed_token_ids=(0, 1), bad_words_token_ids=((2, 0),)),
        make_row(2),
    ]
    samples = sample_on(device, torch.tensor([[0.0, 9.0, 0.0]] * 3), rows)
    assert (samples.token_ids[0], samples.token_ids[2]) == (1, 1)
    (error,) = samples.errors.values()
    assert isinstance(error, InvalidRequestError)
    assert (error.message, error.reason, error.param) == (
        "together, allowed_token_ids, bad_words, min_tokens leave no token that may come next",
        "NO_TOKEN_ALLOWED",
        "allowed_token_ids",
    )


def test_broken_logits_are_named_as_such_also_where_rules_hide_them(device: torch.device) -> None:
    row = make_ruled_row(0, [], allowed_token_ids=(0,), logprobs=2)
    samples = sample_on(device, torch.tensor([[1.0, NAN]]), [row])
    assert samples.errors["r0"].reason == "LOGITS_NOT_FINITE"


def test_a_batch_without_rules_edits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("edited")

    monkeypatch.setattr(cpu, "apply_edits", fail)
    ids_on(CPU, torch.randn(5, 30), [make_row(i, min_p=0.1, top_k=5) for i in range(5)])


def test_rows_that_are_all_greedy_have_no_plan(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("planned")

    logits = torch.randn(5, 30)
    rows = [make_row(i, temperature=0.0, logprobs=i % 2) for i in range(5)]
    monkeypatch.setattr(sampler, "plan_arrays", fail)
    assert ids_on(device, logits, rows) == logits.argmax(-1).tolist()
    with pytest.raises(AssertionError, match="planned"):
        ids_on(device, logits, [*rows[:4], make_row(4)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_stay_as_they_are(dtype: torch.dtype) -> None:
    logits = torch.randn(14, 60).to(dtype)
    before = logits.clone()
    sampler.Sampler(60, CPU).launch(logits, mixed_rows(14))
    assert torch.equal(logits, before)
