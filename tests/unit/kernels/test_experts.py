"""Experts of a mixture: each token gets the sum of its own choices, whatever the other tokens choose."""

from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.expert_choice import Choices
from pagemesh.kernels.expert_choice.cuda import CudaExpertChoice
from pagemesh.kernels.experts import Experts, Stack, make_experts
from pagemesh.kernels.experts.cpu import SortedExperts
from pagemesh.kernels.experts.cuda import CudaExperts
from pagemesh.kernels.experts.interface import ReferenceExperts
from pagemesh.kernels.gated_activation import Gate
from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from pagemesh.kernels.linear import Dense
from tests.support.cpu_isas import isas

GATES = {"silu": Gate("silu"), "clamped_swiglu": Gate("clamped_swiglu", limit=1.5, alpha=1.7)}
# Sums of some ten numbers of unit size, of which each is rounded; the interpreter cuts bfloat16 off.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.2, torch.float16: 0.01}
HIDDEN, INNER, NUM_EXPERTS = 72, 40, 5


def random_stack(dtype: torch.dtype, num_outputs: int, num_inputs: int) -> Stack:
    weight = torch.randn(NUM_EXPERTS, num_outputs, num_inputs) / math.sqrt(num_inputs)
    return Stack(Dense(weight.to(dtype)), torch.randn(NUM_EXPERTS, num_outputs).to(dtype))


def on(device: torch.device, stack: Stack) -> Stack:
    return Stack(
        Dense(stack.weight.dense().to(device)),
        None if stack.bias is None else stack.bias.to(device),
    )


def random_choices(num_tokens: int, num_choices: int) -> torch.Tensor:
    """Of experts 0 to 3: nobody chooses the last one."""
    return torch.rand(num_tokens, NUM_EXPERTS - 1).argsort(dim=1)[:, :num_choices]


@pytest.mark.product(sample=7)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("num_tokens", [1, 3, 45])
def test_each_token_is_the_sum_of_its_choices(
    device: torch.device, dtype: torch.dtype, gate: Gate, num_tokens: int
) -> None:
    ups, downs = random_stack(dtype, 2 * INNER, HIDDEN), random_stack(dtype, HIDDEN, INNER)
    hidden = torch.randn(num_tokens, HIDDEN).to(dtype)
    residual = torch.randn(num_tokens, 2 * HIDDEN)[:, HIDDEN:].to(dtype)
    weights, chosen = torch.rand(num_tokens, 3).to(dtype), random_choices(num_tokens, 3)
    reference = ReferenceExperts(ups, downs, gate)
    experts = make_experts(on(device, ups), on(device, downs), gate)
    choices = Choices(weights.to(device), chosen.to(device))
    before, given = residual.clone(), hidden.to(device)
    actual, added = experts(given, choices), experts.add_to(residual.to(device), given, choices)
    expected = reference(hidden, Choices(weights, chosen))
    assert actual.dtype == added.dtype == dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=TOLERANCES[dtype])
    expected = reference.add_to(residual, hidden, Choices(weights, chosen))
    torch.testing.assert_close(added.cpu(), expected, rtol=0, atol=TOLERANCES[dtype])
    assert torch.equal(residual, before)


def exact_experts(device: torch.device, num_inputs: int, dtype: torch.dtype) -> Experts:
    """With products and sums that are exact in any order: gates are 32, whose sigmoid is 1, and weights
    are halves, mostly zero."""
    generator = torch.Generator().manual_seed(1)
    halves = torch.randint(-1, 2, (NUM_EXPERTS, 8, num_inputs), generator=generator) / 2
    halves *= torch.rand(NUM_EXPERTS, 8, num_inputs, generator=generator) < 12 / num_inputs
    gates = torch.zeros(NUM_EXPERTS, 4, num_inputs)
    up_weight = torch.cat([gates, halves[:, :4]], dim=1)
    up_bias = torch.cat([torch.full((NUM_EXPERTS, 4), 32.0), torch.zeros(NUM_EXPERTS, 4)], dim=1)
    down = halves[:, 4:, :].transpose(1, 2).contiguous()
    return make_experts(
        on(device, Stack(Dense(up_weight.to(dtype)), up_bias.to(dtype))),
        on(device, Stack(Dense(down.to(dtype)), None)),
        Gate("silu"),
    )


@pytest.mark.product(most=2)
@pytest.mark.parametrize(("num_inputs", "dtype"), [(24, torch.float32), (640, torch.float16)])
def test_a_token_does_not_depend_on_the_others_by_a_single_bit(
    device: torch.device, dtype: torch.dtype, num_inputs: int
) -> None:
    experts = exact_experts(device, num_inputs, dtype)
    hidden = (torch.randint(-2, 3, (50, num_inputs)) / 2).to(dtype).to(device)
    weights = torch.rand(50, 2).to(dtype).to(device)
    chosen = random_choices(50, 2).to(device)
    together = experts(hidden, Choices(weights, chosen))
    assert together.isfinite().all()
    assert together.abs().sum() > 0
    for begin, end in ((0, 1), (5, 8), (20, 40)):
        part = slice(begin, end)
        alone = experts(hidden[part], Choices(weights[part], chosen[part]))
        assert torch.equal(alone, together[part])


@pytest.mark.product(most=3)
@isas
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_sums_that_are_rounded_do_not_depend_on_other_tokens_either(
    isa: CpuIsa, dtype: torch.dtype
) -> None:
    ups, downs = torch.randn(NUM_EXPERTS, 40, 90), torch.randn(NUM_EXPERTS, 90, 20)
    with using_isa(isa):
        experts = make_experts(
            Stack(Dense(ups.to(dtype)), None), Stack(Dense(downs.to(dtype)), None), Gate("silu")
        )
        hidden, weights = torch.randn(200, 90).to(dtype), torch.rand(200, 3).to(dtype)
        residual, chosen = torch.randn(200, 90).to(dtype), random_choices(200, 3)
        together = experts.add_to(residual, hidden, Choices(weights, chosen))
        for begin, end in ((0, 1), (5, 8), (20, 90)):
            part = slice(begin, end)
            choices = Choices(weights[part], chosen[part])
            alone = experts.add_to(residual[part], hidden[part], choices)
            assert torch.equal(alone, together[part])


def test_experts_without_tokens_are_not_computed() -> None:
    def unused(hidden: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no token chose this expert")

    experts = SortedExperts([unused, lambda hidden: 2 * hidden, lambda hidden: -hidden, unused])
    hidden = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    weights, chosen = torch.tensor([[0.5, 1.0], [2.0, 0.0]]), torch.tensor([[1, 2], [1, 1]])
    assert experts(hidden, Choices(weights, chosen)).tolist() == [[0.0, 0.0], [20.0, 28.0]]


@pytest.mark.costly
def test_many_pairs_are_sorted_by_several_programs(device: torch.device) -> None:
    # An expert is the factor 1, 2, 4, 8 or 16; 3,200 pairs are counted in four runs.
    factors = (2.0 ** torch.arange(NUM_EXPERTS))[:, None, None]
    up = torch.tensor([[0.0], [1.0]]).expand(NUM_EXPERTS, 2, 1).contiguous()
    bias = torch.tensor([[1.0, 0.0]]).expand(NUM_EXPERTS, 2).contiguous()
    gate = Gate("clamped_swiglu", limit=64.0, alpha=200.0)
    experts = make_experts(
        on(device, Stack(Dense(up), bias)), on(device, Stack(Dense(factors), None)), gate
    )
    hidden = torch.randint(0, 8, (800, 1)).float()
    chosen = random_choices(800, 4)
    weights = torch.tensor([[1.0, 0.25, 4.0, 0.5]]).repeat(800, 1)
    choices = Choices(weights.to(device), chosen.to(device))
    actual = experts(hidden.to(device), choices).cpu()
    shares = (weights * 2.0**chosen).sum(dim=1, keepdim=True)
    assert torch.equal(actual, (hidden + 1) * shares)


def test_choices_that_are_sorted_already_give_the_same() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ups, downs = random_stack(torch.float32, 2 * INNER, 24), random_stack(torch.float32, 24, INNER)
    experts = CudaExperts(on(device, ups), on(device, downs), Gate("silu"))
    # Some tiles of 16 are full, and some experts have a few pairs in a second one.
    hidden, logits = torch.randn(29, 24, device=device), torch.randn(29, NUM_EXPERTS, device=device)
    choices = CudaExpertChoice(3, normalize=True)(logits)
    assert choices.by_expert is not None
    expected = experts(hidden, choices._replace(by_expert=None))
    assert expected.abs().sum() > 0
    assert torch.equal(experts(hidden, choices), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_float32_are_not_rounded(device: torch.device, dtype: torch.dtype) -> None:
    ups, downs = (
        Stack(Dense(torch.ones(5, 8, 6, dtype=dtype, device=device)), None),
        Stack(Dense(torch.ones(5, 6, 4, dtype=dtype, device=device)), None),
    )
    experts = make_experts(ups, downs, Gate("silu"))
    hidden, chosen = torch.ones(3, 6, dtype=dtype, device=device), torch.tensor([[4, 1]] * 3)
    # All experts give the same. The smallest step of float16 above 1 is 2^-10.
    weights = torch.tensor([[1.0, 0.0], [1 + 2.0**-11, -1.0], [1.0, -1.0]], device=device)
    one, little, nothing = experts(hidden, Choices(weights, chosen.to(device)))
    assert one.min() > 0
    assert torch.equal(little, one * 2.0**-11)
    assert not nothing.any()


def test_no_tokens_give_no_outputs() -> None:
    stacks = Stack(Dense(torch.ones(5, 8, 6)), None), Stack(Dense(torch.ones(5, 6, 4)), None)
    experts = CudaExperts(*stacks, Gate("silu"))
    nothing = torch.ones(0, 2)
    assert experts(torch.ones(0, 6), Choices(nothing, nothing.long())).shape == (0, 6)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    ups, downs = (
        Stack(Dense(torch.ones(5, 8, 6, device=device)), None),
        Stack(Dense(torch.ones(5, 6, 4, device=device)), None),
    )
    experts = make_experts(ups, downs, Gate("silu"))
    hidden, weights = torch.ones(3, 6, device=device), torch.ones(3, 2, device=device)
    chosen = torch.zeros(3, 2, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match=r"weights \[3, 2\] .* do not fit hidden states \[2, 6\]"):
        experts(hidden[:2], Choices(weights, chosen))
    with pytest.raises(ValueError, match=r"chosen experts \[3, 2\] of torch.int32"):
        experts(hidden, Choices(weights, chosen.int()))
    with pytest.raises(ValueError, match=r"the residual \[2, 6\] .* hidden states \[3, 6\]"):
        experts.add_to(hidden[:2], hidden, Choices(weights, chosen))
    with pytest.raises(ValueError, match=r"not \[5, 8, 6\] of .* and \[5, 6, 3\]"):
        make_experts(ups, Stack(Dense(downs.weight.dense()[:, :, :3]), None), Gate("silu"))
    with pytest.raises(
        ValueError, match=r"biases \[5, 5\] do not fit experts' weights \[5, 6, 4\]"
    ):
        make_experts(ups, Stack(downs.weight, torch.ones(5, 5, device=device)), Gate("silu"))
