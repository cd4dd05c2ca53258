"""The likeliest tokens are those that torch finds."""

from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.arg_max import ArgMax, arg_max
from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from tests.support.cpu_isas import isas

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.product(sample=30)
@isas
@pytest.mark.parametrize("size", [1, 15, 16, 17, 250, 1024])
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_and_place_are_those_of_torch(dtype: torch.dtype, size: int, isa: CpuIsa) -> None:
    # Few values, so that the greatest stands in many places.
    logits = (torch.randint(-9, -2, (33, size)) / 4).to(dtype)
    logits[::5] = -math.inf
    logits[1, -1] = 3.5
    with using_isa(isa):
        values, indices = arg_max(logits)
    expected = logits.float().max(dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)


@pytest.mark.parametrize("place", [0, 5, 16, 34])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_told(dtype: torch.dtype, place: int) -> None:
    logits = torch.randn(3, 35).to(dtype)
    logits[0, place] = math.nan
    logits[2, place] = math.inf
    values, indices = arg_max(logits)
    assert [math.isnan(value) for value in values.tolist()] == [True, False, False]
    assert values[2] == math.inf and indices[2] == place
    assert 0 <= indices[0] < 35


def test_rows_may_lie_in_any_way() -> None:
    logits = torch.randn(40, 12)
    for view in (logits.T, logits[:, 3:9], logits[::3]):
        assert torch.equal(arg_max(view)[1], view.max(dim=-1).indices)
    assert arg_max(logits[:0])[1].tolist() == []


def test_of_logits_that_come_again_what_they_are_by_then_counts() -> None:
    find = ArgMax()
    first, second = torch.randn(3, 50), torch.randn(5, 40)
    for logits in (first, first, second, second.T, second[:, 3:9], first):
        logits.copy_(torch.randn(logits.shape))
        values, indices = find(logits)
        assert torch.equal(values, logits.max(dim=-1).values)
        assert torch.equal(indices, logits.max(dim=-1).indices)
