"""The experts of each token: the best few by its own logits, whatever the other tokens' are."""

from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.expert_choice import Choices, make_expert_choice
from pagemesh.kernels.expert_choice.cuda import CudaExpertChoice
from pagemesh.kernels.expert_choice.interface import ReferenceExpertChoice
from pagemesh.kernels.linear.tiles import choose_block_t, most_token_tiles

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Exponentials are a few bits less exact than torch's; the interpreter cuts bfloat16 off.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}

both_weightings = pytest.mark.parametrize("normalize", [True, False], ids=["of chosen", "of all"])


@pytest.mark.product(sample=30)
@both_weightings
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen"),
    [(1, 8, 2), (3, 60, 4), (45, 128, 8), (70, 128, 8), (9, 5, 5), (2, 7, 1)],
    ids=str,
)
def test_choices_are_those_of_the_definition(
    device: torch.device,
    dtype: torch.dtype,
    num_tokens: int,
    num_experts: int,
    num_chosen: int,
    normalize: bool,
) -> None:
    # Quarters: many are equal.
    logits = (torch.randn(num_tokens, num_experts) * 4).round().div(4).to(dtype)
    choose = make_expert_choice(num_chosen, device, normalize=normalize)
    weights, experts, _ = choose(logits.to(device))
    expected = ReferenceExpertChoice(num_chosen, normalize=normalize)(logits)
    assert (weights.dtype, experts.dtype) == (dtype, torch.int64)
    assert torch.equal(experts.cpu(), expected.experts)
    torch.testing.assert_close(weights.cpu(), expected.weights, rtol=TOLERANCES[dtype], atol=0)


@both_weightings
def test_of_equal_logits_the_first_expert_is_chosen(device: torch.device, normalize: bool) -> None:
    logits = [[1.0, 3.0, 2.0, 2.0, 2.0], [4.0, 4.0, 4.0, 4.0, 5.0], [-1.0, -0.0, 0.0, -0.0, -2.0]]
    choose = make_expert_choice(3, device, normalize=normalize)
    experts = choose(torch.tensor(logits, dtype=torch.bfloat16, device=device)).experts
    assert experts.tolist() == [[1, 2, 3], [4, 0, 1], [1, 2, 3]]


@both_weightings
def test_distant_logits_weigh_nothing(device: torch.device, normalize: bool) -> None:
    logits = torch.tensor([[-math.inf, -200.0, 100.0, -math.inf, 90.0]], device=device)
    weights, experts, _ = make_expert_choice(3, device, normalize=normalize)(logits)
    # Of all shares, two are zeros and equal.
    assert experts.tolist() == [[2, 4, 1 if normalize else 0]]
    share = 1.0 / (1.0 + math.exp(-10.0))
    assert weights.tolist() == [pytest.approx([share, 1.0 - share, 0.0], rel=2e-6)]


@both_weightings
@pytest.mark.parametrize("num_experts", [6, 128])
def test_a_token_does_not_depend_on_the_others_by_a_single_bit(
    device: torch.device, num_experts: int, normalize: bool
) -> None:
    choose = make_expert_choice(4, device, normalize=normalize)
    logits = torch.randn(70, num_experts, device=device)
    together = choose(logits)
    for begin, end in ((0, 1), (5, 8), (3, 67)):
        alone = choose(logits[begin:end])
        assert torch.equal(alone.weights, together.weights[begin:end])
        assert torch.equal(alone.experts, together.experts[begin:end])


def tiles_of(choices: Choices, num_experts: int) -> list[list[int]]:
    """What `ByExpert` says of tiles, expert by expert."""
    numbers = choices.experts.flatten()
    size = choose_block_t(len(numbers), num_experts)
    tiles, begin = [], 0
    for expert, count in enumerate(torch.bincount(numbers, minlength=num_experts).tolist()):
        firsts = range(begin, begin + count, size)
        tiles += [[expert, first, begin + count] for first in firsts]
        begin += count
    return tiles


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen"),
    [(1, 8, 2), (1, 128, 8), (3, 60, 4), (64, 128, 8), (50, 5, 3), (200, 4, 2), (7, 2, 1)],
    ids=str,
)
def test_choices_of_few_tokens_are_sorted_by_expert(
    num_tokens: int, num_experts: int, num_chosen: int
) -> None:
    logits = torch.randn(num_tokens, num_experts, device=DEVICE)
    # Most tokens choose the first expert, which has several tiles then.
    logits[: num_tokens * 3 // 4, 0] += 4.0
    choices = CudaExpertChoice(num_chosen, normalize=True)(logits)
    assert choices.by_expert is not None
    order, tiles = choices.by_expert
    assert torch.equal(order.long(), choices.experts.flatten().argsort(stable=True))
    size = choose_block_t(len(order), num_experts)
    assert len(tiles) == most_token_tiles(len(order), size, num_experts)
    expected = tiles_of(choices, num_experts)
    assert tiles.tolist()[: len(expected)] == expected
    assert not tiles[len(expected) :, 1:].any()


def test_choices_of_many_tokens_are_not_sorted() -> None:
    logits = torch.randn(65, 128, device=DEVICE)
    assert CudaExpertChoice(8, normalize=True)(logits).by_expert is None


def test_logits_may_lie_anywhere(device: torch.device) -> None:
    choose = make_expert_choice(2, device, normalize=True)
    wide = torch.full((4, 20), math.nan, device=device)
    wide[:, 3:9] = torch.randn(4, 6)
    expected = choose(wide[:, 3:9].contiguous())
    turned = wide[:, 3:9].t().contiguous().t()
    for logits in (wide[:, 3:9], turned):
        weights, experts, _ = choose(logits)
        assert torch.equal(weights, expected.weights)
        assert torch.equal(experts, expected.experts)


def test_no_tokens_choose_nothing(device: torch.device) -> None:
    weights, experts, _ = make_expert_choice(2, device, normalize=True)(
        torch.ones(0, 6, device=device)
    )
    assert weights.shape == experts.shape == (0, 2)


def test_what_cannot_be_chosen_is_refused(device: torch.device) -> None:
    for num_chosen in (0, 7):
        choose = make_expert_choice(num_chosen, device, normalize=True)
        message = rf"{num_chosen} experts cannot be chosen by logits \[3, 6\]"
        with pytest.raises(ValueError, match=message):
            choose(torch.ones(3, 6, device=device))
