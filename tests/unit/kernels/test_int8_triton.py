"""Products of whole numbers of 8 bits in Triton: the bits that their definition says, as on CPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.expert_choice import Choices
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.experts.interface import ReferenceExperts
from pagemesh.kernels.linear import Gate, make_gated_linear, make_linear
from pagemesh.kernels.linear.cuda_weight import KernelWeight
from pagemesh.kernels.linear.packed import ChannelInt8
from tests.unit.kernels.quantised import channel_int8
from tests.unit.kernels.test_int8_linear import defined

pytestmark = pytest.mark.usefixtures("in_triton")

dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
statics = pytest.mark.parametrize(
    "input_scale", [pytest.param(None, id="dynamic"), pytest.param(0.013, id="static")]
)


@pytest.mark.product(sample=4)
@dtypes
@statics
@pytest.mark.parametrize("num_inputs", [121, 512])
def test_whole_numbers_are_added_exactly(
    is_split: bool, dtype: torch.dtype, input_scale: float | None, num_inputs: int
) -> None:
    weight = static(channel_int8((70, num_inputs), dtype), input_scale)
    bias = torch.randn(70).to(dtype)
    rows, residual = torch.randn(37, num_inputs).to(dtype), torch.randn(37, 70).to(dtype)
    rows[3] = 0
    expected = defined(weight, rows) + bias.float()
    linear = make_linear(weight, bias)
    for size in (1, 37):
        assert torch.equal(linear(rows[:size]), expected[:size].to(dtype))
        added = expected[:size] + residual[:size].float()
        assert torch.equal(linear.add_to(residual[:size], rows[:size]), added.to(dtype))


def static(weight: ChannelInt8, input_scale: float | None) -> ChannelInt8:
    if input_scale is None:
        return weight
    return replace(weight, input_scale=torch.full((1, 1), input_scale))


@statics
def test_rows_that_are_not_finite_give_nan_and_others_do_not(input_scale: float | None) -> None:
    weight = static(channel_int8((9, 40), torch.float32), input_scale)
    rows = torch.randn(6, 40)
    rows[0, 3], rows[1, 39], rows[2, 0] = torch.nan, torch.inf, -torch.inf
    rows[3] = 2.0**-101
    found = make_linear(weight)(rows)
    assert found.isnan().all(1).tolist() == [True, True, True, False, False, False]
    assert torch.equal(found[3:], defined(weight, rows[3:]))


def test_gates_of_whole_numbers_are_those_of_their_products() -> None:
    weight, rows = channel_int8((70, 130), torch.float32), torch.randn(5, 130) / 8
    gates, ups = defined(weight, rows).chunk(2, 1)
    found = make_gated_linear(weight, None, Gate("silu"))(rows)
    torch.testing.assert_close(found, gates.sigmoid() * gates * ups, rtol=1e-5, atol=1e-5)


def test_experts_may_be_of_whole_numbers() -> None:
    ups, downs = (channel_int8(shape, torch.float32) for shape in ((3, 80, 72), (3, 72, 40)))
    ups, downs = (replace(each, scales=each.scales / 32) for each in (ups, downs))
    hidden = torch.randn(9, 72)
    choices = Choices(torch.rand(9, 2), torch.rand(9, 3).argsort(1)[:, :2])
    found = make_experts(Stack(ups, None), Stack(downs, None), Gate("silu"))(hidden, choices)
    expected = ReferenceExperts(Stack(ups, None), Stack(downs, None), Gate("silu"))(hidden, choices)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_experts_with_scales_of_their_own_for_activations_are_refused() -> None:
    weight = replace(channel_int8((3, 80, 72), torch.float16), input_scale=torch.ones(3, 1, 1))
    with pytest.raises(ConfigError, match="input_scale for each expert"):
        KernelWeight(weight)
