"""Kernels that choose and score tokens: where they write, and what they refuse.

What they choose is tested in tests/unit/sampling, against the plain definition.
"""

from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.logprobs import TokenScores, score_rows
from pagemesh.kernels.logprobs.cuda import CudaTokenScorer
from pagemesh.kernels.sampling import NOT_FINITE, NOTHING_LEFT, SamplingPlan
from pagemesh.kernels.sampling.cuda import CudaTokenChooser
from tests.support.tolerances import float32_tolerance

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB_SIZE = 75
GUARD = -77


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=DEVICE)


def make_plan() -> SamplingPlan:
    """Greedy; drawn; only token 70; nothing but a mask without bits."""
    masks = torch.zeros(2, 3, dtype=torch.int32)
    masks[0, 2] = 1 << 6
    return SamplingPlan(
        temperatures=doubles(0.0, 0.5, 1.0, 1.0),
        top_ps=doubles(1.0, 0.9, 1.0, 1.0),
        min_ps=doubles(0.0, 0.0, 0.1, 0.0),
        seeds=torch.tensor([0, 1, 2, -1], device=DEVICE),
        positions=torch.tensor([0, 1, 2, 3], device=DEVICE),
        top_ks=ints(0, 4, 0, 0),
        drawn_rows=ints(1, 2, 3),
        edit_slots=ints(0, -1, 1, 2),
        penalties=torch.tensor([[2.0, 0.5, 0.25], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], device=DEVICE),
        entry_bounds=torch.stack([ints(0, 1, 3, 4, 5), ints(5, 5, 5, 5, 5), ints(5, 5, 5, 5, 5)]),
        # Token 9: 8 + 8, halved, less twice a half and a quarter: 6.75. Token 3 is halved to 4.
        entry_ids=ints(9, 9, 3, 9, 40),
        entry_values=torch.tensor([8.0, 0.0, 0.0, 2.0, 0.0], device=DEVICE),
        mask_rows=ints(-1, 0, 1),
        masks=masks.to(DEVICE),
    )


def make_logits() -> torch.Tensor:
    """Of the first row only tokens 3, 9, 20 and 40 count; rows are strided, and lie among NaN."""
    wide = torch.full((4, VOCAB_SIZE + 20), math.nan)
    logits = wide[:, 10 : 10 + VOCAB_SIZE]
    logits[:] = torch.arange(VOCAB_SIZE) / -10
    logits[0] = -9.0
    logits[0, [3, 9, 20, 40]] = torch.tensor([8.0, 8.0, 6.5, 50.0])
    return wide.to(DEVICE)[:, 10 : 10 + VOCAB_SIZE]


@pytest.mark.parametrize("chunk", [16, 128])
def test_choices_are_written_where_they_belong(chunk: int) -> None:
    token_ids = torch.full((8,), GUARD, device=DEVICE)
    flags = torch.full((8,), GUARD, dtype=torch.int32, device=DEVICE)
    choose = CudaTokenChooser(VOCAB_SIZE, DEVICE, chunk)
    choose(make_logits(), make_plan(), token_ids[2:6], flags[2:6])
    assert flags.tolist() == [GUARD, GUARD, 0, 0, 0, NOTHING_LEFT, GUARD, GUARD]
    ids = token_ids.tolist()
    assert ids[:3] == [GUARD, GUARD, 9]
    assert ids[3] in range(4)
    assert ids[4] == 70
    assert ids[6:] == [GUARD, GUARD]


@pytest.mark.costly
@pytest.mark.parametrize("flatness", [0.02, 1.5])
def test_the_division_of_the_work_does_not_matter(flatness: float) -> None:
    """A row in one chunk or many, its candidates in registers or a list."""
    num_rows, vocab_size = 6, 260
    logits = torch.randn(num_rows, vocab_size, device=DEVICE) * flatness
    plan = make_plan()._replace(
        temperatures=doubles(1.0, 0.9, 1.0, 1.0, 2.0, 1.0),
        top_ps=doubles(0.95, 0.5, 0.9, 1.0, 0.99, 0.7),
        min_ps=doubles(0.0, 0.0, 0.0, 0.1, 0.2, 0.1),
        top_ks=ints(0, 0, 150, 0, 0, 200),
        seeds=torch.arange(num_rows, device=DEVICE),
        positions=torch.arange(num_rows, device=DEVICE),
        drawn_rows=ints(*range(num_rows)),
        edit_slots=ints(*[-1] * num_rows),
        masks=torch.zeros(2, -(-vocab_size // 32), dtype=torch.int32, device=DEVICE),
    )
    tokens = []
    for chunk, list_block in ((512, 512), (64, 512), (64, 32)):
        token_ids = torch.empty(num_rows, dtype=torch.int64, device=DEVICE)
        flags = torch.empty(num_rows, dtype=torch.int32, device=DEVICE)
        choose = CudaTokenChooser(vocab_size, DEVICE, chunk, list_block)
        choose(logits, plan, token_ids, flags)
        assert not flags.any()
        tokens.append(token_ids.tolist())
    assert tokens[1:] == tokens[:1] * 2


def test_a_penalty_less_decides_otherwise() -> None:
    plan = make_plan()
    plan.penalties[0, 2] = 0.75
    token_ids = torch.empty(4, dtype=torch.int64, device=DEVICE)
    flags = torch.empty(4, dtype=torch.int32, device=DEVICE)
    logits = make_logits()
    CudaTokenChooser(VOCAB_SIZE, DEVICE, 16)(logits, plan, token_ids, flags)
    assert token_ids[0] == 20
    logits[0, 74] = math.nan
    CudaTokenChooser(VOCAB_SIZE, DEVICE, 16)(logits, plan, token_ids, flags)
    assert flags[0] == NOT_FINITE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"top_ks": ints(0, 4, 0)},
            r"top_ks, torch.int32 \[3\] on .*, does not fit logits \[4, 75\]",
        ),
        ({"masks": torch.zeros(2, 2, dtype=torch.int32)}, r"masks, torch.int32 \[2, 2\] on"),
        (
            {"entry_values": torch.zeros(4)},
            r"entry_values, torch.float32 \[4\] on .* of which 3 rows are edited",
        ),
        (
            {"seeds": torch.zeros(8, dtype=torch.int64, device=DEVICE)[::2]},
            r"seeds, torch.int64 \[4\] on",
        ),
        ({"top_ps": torch.ones(4)}, r"top_ps, torch.float32 \[4\] on"),
    ],
    ids=["a row less", "a word less", "a value less", "not dense", "too narrow"],
)
def test_plans_that_do_not_fit_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    plan = make_plan()._replace(**{name: part.to(DEVICE) for name, part in change.items()})
    token_ids = torch.empty(4, dtype=torch.int64, device=DEVICE)
    flags = torch.empty(4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=message):
        CudaTokenChooser(VOCAB_SIZE, DEVICE)(make_logits(), plan, token_ids, flags)


def make_scores(num_rows: int, num_top: int) -> TokenScores:
    """Outputs full of what no score is."""

    def garbage(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, GUARD, dtype=dtype, device=DEVICE)

    return TokenScores(
        garbage(num_rows + 2),
        garbage(num_rows + 2),
        garbage(num_rows + 2, dtype=torch.int32),
        garbage(num_rows + 2, num_top, dtype=torch.int32),
        garbage(num_rows + 2, num_top),
    )


@pytest.mark.parametrize("chunk", [16, 128])
@pytest.mark.parametrize("num_top", [0, 20])
def test_scores_are_the_definition_and_lie_where_they_belong(chunk: int, num_top: int) -> None:
    logits = make_logits()
    token_ids = torch.tensor([3, 0, 74, 20], device=DEVICE)
    rows = ints(3, 0)
    scores = make_scores(2, num_top)
    CudaTokenScorer(DEVICE, chunk)(
        logits, rows, token_ids, TokenScores(*(part[1:3] for part in scores))
    )
    expected = score_rows(logits[[3, 0]].contiguous(), token_ids[[3, 0]], num_top)
    for part, other in zip(scores, expected, strict=True):
        assert (part[0] == GUARD).all()
        assert (part[3] == GUARD).all()
        torch.testing.assert_close(part[1:3], other, rtol=1e-6, atol=float32_tolerance(DEVICE))


def test_more_tokens_than_there_are_cannot_be_the_likeliest() -> None:
    logits, token_ids = torch.zeros(1, 4, device=DEVICE), torch.zeros(1, dtype=torch.int64)
    scores = TokenScores(*(part[:1] for part in make_scores(1, 5)))
    with pytest.raises(ValueError, match="5 likeliest tokens of at most 4 do not fit"):
        CudaTokenScorer(DEVICE)(logits, ints(0), token_ids.to(DEVICE), scores)
