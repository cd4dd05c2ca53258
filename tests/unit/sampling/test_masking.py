"""Masks of constraints on logits, alone and in the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.masking import apply_constraints
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.sampler import SampledRow, sample

VOCAB_SIZE = 70


@dataclass
class Allow:
    """Allows what it was told; avoids as told by whoever asks."""

    token_ids: set[int]
    avoided: list[tuple[int, ...]] = field(default_factory=list)

    is_over = False

    def accept(self, token_id: int) -> bool:
        return token_id in self.token_ids

    def fill_mask(self, mask: npt.NDArray[np.int32], avoid: Sequence[int] = ()) -> None:
        self.avoided.append(tuple(avoid))
        bits = np.zeros(mask.size * 32, dtype=np.bool_)
        bits[list(self.token_ids - set(avoid) or self.token_ids)] = True
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)


class Refuse(Allow):
    """Cannot go on."""

    def fill_mask(self, mask: npt.NDArray[np.int32], avoid: Sequence[int] = ()) -> None:
        raise InvalidRequestError("too complex", param="structured_outputs")


def make_logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE)


@pytest.mark.parametrize("rows", [[0], [1], [0, 2], [0, 1, 2], [2, 0]], ids=str)
def test_only_what_is_allowed_keeps_its_logits(rows: list[int]) -> None:
    logits = make_logits(3)
    before = logits.clone()
    allowed = {0: {0, 31, 32, 69}, 1: {5}, 2: set(range(VOCAB_SIZE))}
    assert apply_constraints(logits, [(row, Allow(allowed[row]), ()) for row in rows]) == {}
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
def test_sampled_tokens_are_allowed_ones(temperature: float) -> None:
    for seed in range(20):
        rows = [
            make_row("a", Allow({3, 33, 64}), temperature=temperature, seed=seed),
            make_row("b", None, temperature=temperature, seed=seed),
            make_row("c", Allow({69}), temperature=temperature, seed=seed),
        ]
        samples = sample(make_logits(3), rows)
        assert samples.errors == {}
        assert samples.token_ids[0] in {3, 33, 64}
        assert samples.token_ids[1] != 7
        assert samples.token_ids[2] == 69


def test_suppressed_tokens_are_avoided_but_not_at_any_price() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 7] = 9.0
    constraints = [Allow({7, 8}), Allow({7}), None]
    rows = [make_row(str(index), constraint) for index, constraint in enumerate(constraints)]
    assert sample(logits, rows).token_ids[:2] == [8, 7]
    assert [c.avoided for c in constraints if c is not None] == [[(7,)], [(7,)]]


def test_a_row_that_cannot_go_on_fails_alone() -> None:
    rows = [make_row("a", Allow({3})), make_row("b", Refuse(set())), make_row("c", Allow({4}))]
    logits = make_logits(3)
    samples = sample(logits, rows)
    assert (samples.token_ids[0], samples.token_ids[2]) == (3, 4)
    assert {name: error.message for name, error in samples.errors.items()} == {"b": "too complex"}
    logits = make_logits(3)
    logits[1, 5] = float("nan")
    assert sample(logits, rows).errors["b"].reason == "LOGITS_NOT_FINITE"


def test_parameters_that_leave_nothing_of_what_is_allowed_are_an_error() -> None:
    row = SampledRow("a", SamplingParams(temperature=0.0), position=3, constraint=Allow({3, 4}))
    logits = make_logits(1)
    logits[0, 3:5] = -torch.inf
    assert sample(logits, [row]).errors["a"].reason == "NO_TOKEN_ALLOWED"
