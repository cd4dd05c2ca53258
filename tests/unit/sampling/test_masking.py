"""Masks of constraints on logits, alone and in the sampler."""

from __future__ import annotations

import pytest
import torch

from pagemesh.sampling.logits_rules import make_logit_rules
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.plan import SampledRow
from pagemesh.sampling.sampler import Sampler
from tests.unit.sampling.sampled import Allow, Refuse, edited_on_cpu, fewer, sample_on

VOCAB_SIZE = 70


def make_logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE)


@pytest.mark.parametrize("rows", [[0], [1], [0, 2], [0, 1, 2]], ids=str)
def test_only_what_is_allowed_keeps_its_logits(rows: list[int]) -> None:
    before = make_logits(3)
    allowed = {0: {0, 31, 32, 69}, 1: {5}, 2: set(range(VOCAB_SIZE))}
    sampled = [make_row(f"r{row}", None) for row in range(3)]
    for row in rows:
        sampled[row] = sampled[row]._replace(constraint=Allow(allowed[row]))
    sampled = [row._replace(suppressed_token_ids=()) for row in sampled]
    logits = edited_on_cpu(before, sampled)
    for row in range(3):
        kept = allowed[row] if row in rows else set(range(VOCAB_SIZE))
        assert set(torch.isfinite(logits[row]).nonzero()[:, 0].tolist()) == kept
        assert torch.equal(logits[row, sorted(kept)], before[row, sorted(kept)])


def make_row(request_id: str, constraint: Allow | None, **params: float) -> SampledRow:
    return SampledRow(
        request_id,
        SamplingParams(temperature=params.pop("temperature", 0.0), **params),  # type: ignore[arg-type]
        position=3,
        suppressed_token_ids=(7,),
        constraint=constraint,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampled_tokens_are_allowed_ones(device: torch.device, temperature: float) -> None:
    for seed in range(fewer(device, 20)):
        rows = [
            make_row("a", Allow({3, 33, 64}), temperature=temperature, seed=seed),
            make_row("b", None, temperature=temperature, seed=seed),
            make_row("c", Allow({69}), temperature=temperature, seed=seed),
        ]
        samples = sample_on(device, make_logits(3), rows)
        assert samples.errors == {}
        assert samples.token_ids[0] in {3, 33, 64}
        assert samples.token_ids[1] != 7
        assert samples.token_ids[2] == 69


def test_suppressed_tokens_are_avoided_but_not_at_any_price(device: torch.device) -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 7] = 9.0
    constraints = [Allow({7, 8}), Allow({7}), None]
    rows = [make_row(str(index), constraint) for index, constraint in enumerate(constraints)]
    assert sample_on(device, logits, rows).token_ids[:2] == [8, 7]
    assert [c.avoided for c in constraints if c is not None] == [[(7,)], [(7,)]]


def test_a_row_that_cannot_go_on_fails_alone(device: torch.device) -> None:
    rows = [make_row("a", Allow({3})), make_row("b", Refuse(set())), make_row("c", Allow({4}))]
    logits = make_logits(3)
    samples = sample_on(device, logits, rows)
    assert (samples.token_ids[0], samples.token_ids[2]) == (3, 4)
    assert {name: error.message for name, error in samples.errors.items()} == {"b": "too complex"}
    logits = make_logits(3)
    logits[1, 5] = float("nan")
    assert sample_on(device, logits, rows).errors["b"].reason == "LOGITS_NOT_FINITE"


def test_parameters_that_leave_nothing_of_what_is_allowed_are_an_error(
    device: torch.device,
) -> None:
    row = SampledRow("a", SamplingParams(temperature=0.0), position=3, constraint=Allow({3, 4}))
    logits = make_logits(1)
    logits[0, 3:5] = -torch.inf
    assert sample_on(device, logits, [row]).errors["a"].reason == "NO_TOKEN_ALLOWED"


def test_a_mask_is_its_own_rows_beside_edited_rows_without_one() -> None:
    logits = torch.arange(64.0).repeat(2, 1)
    rows = []
    for name, params in (
        ("penalised", SamplingParams(temperature=0, repetition_penalty=1.5)),
        ("masked", SamplingParams(temperature=0, allowed_token_ids=(5, 7))),
    ):
        rules = make_logit_rules(params, [63], [])
        rows.append(SampledRow(name, params, position=1, rules=rules))
    samples = Sampler(64, torch.device("cpu")).launch(logits, rows).read()
    assert samples.token_ids == [62, 7]
