"""Kernels round groups as the plain definitions do, bit for bit, on every class of processors."""

from __future__ import annotations

import pytest
import torch

from pagemesh.kernels.group_rounding import round_fp8, round_int4, round_int8
from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas, using_isa
from pagemesh.models.quantization.rounding import (
    plain_round_fp8,
    plain_round_int4,
    plain_round_int8,
)

SHAPES = [(1, 32), (3, 32), (40, 96), (2, 5, 64), (33, 1024)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """With groups that are zeros, alike, tiny, large, of both signs or one, and with ties."""
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.randn(shape, generator=generator).view(-1, shape[-1])
    for row, own in enumerate(numbers):
        match row % 8:
            case 1:
                own.zero_()
            case 2:
                own.fill_(-0.375)
            case 3:
                own.mul_(2.0**-12).abs_()
            case 4:
                own.mul_(1000.0)
            case 5:
                own.copy_((own * 8).round() / 8)
            case 6:
                own.mul_(torch.exp2(torch.arange(len(own)) % 16 - 12.0)).abs_().neg_()
            case _:
                pass
    return numbers.view(shape).to(dtype)


def int4_of(rounds: object, weight: torch.Tensor, group_size: int) -> list[torch.Tensor]:
    *leading, num_inputs = weight.shape
    codes = torch.full((*leading, num_inputs // 2), 99, dtype=torch.uint8)
    scales, minimums = torch.zeros(2, *leading, num_inputs // group_size).to(torch.bfloat16)
    assert callable(rounds)
    rounds(weight, group_size, codes, scales, minimums)
    return [codes, scales, minimums]


def int8_of(rounds: object, weight: torch.Tensor, group_size: int) -> list[torch.Tensor]:
    *leading, num_inputs = weight.shape
    codes = torch.full(weight.shape, 99, dtype=torch.uint8)
    scales = torch.zeros(*leading, num_inputs // group_size).to(torch.bfloat16)
    assert callable(rounds)
    rounds(weight, group_size, codes, scales)
    return [codes, scales]


def fp8_of(rounds: object, weight: torch.Tensor, group_size: int) -> list[torch.Tensor]:
    *leading, num_inputs = weight.shape
    codes = torch.zeros(weight.shape).to(torch.float8_e4m3fn)
    scales = torch.zeros(*leading, -(-num_inputs // group_size)).to(torch.bfloat16)
    assert callable(rounds)
    rounds(weight, group_size, codes, scales)
    return [codes.view(torch.uint8), scales]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for own, other in zip(found, expected, strict=True):
        assert torch.equal(own, other)


@pytest.mark.product(sample=12)
@pytest.mark.parametrize("isa", processor_isas())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_of_4_bits_are_those_of_the_definition(
    shape: tuple[int, ...], dtype: torch.dtype, isa: CpuIsa
) -> None:
    weight = draw(*shape, dtype=dtype)
    expected = int4_of(plain_round_int4, weight, 32)
    with using_isa(isa):
        assert_equal(int4_of(round_int4, weight, 32), expected)


@pytest.mark.product(sample=12)
@pytest.mark.parametrize("isa", processor_isas())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (5, 48)], ids=str)
def test_codes_of_8_bits_are_those_of_the_definition(
    shape: tuple[int, ...], dtype: torch.dtype, isa: CpuIsa
) -> None:
    weight = draw(*shape, dtype=dtype)
    expected = int8_of(plain_round_int8, weight, 16)
    with using_isa(isa):
        assert_equal(int8_of(round_int8, weight, 16), expected)


@pytest.mark.product(sample=12)
@pytest.mark.parametrize("isa", processor_isas())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1), (7, 20), (40, 100), (2, 3, 335)], ids=str)
def test_codes_of_fp8_are_those_of_the_definition(
    shape: tuple[int, ...], dtype: torch.dtype, isa: CpuIsa
) -> None:
    weight = draw(*shape, dtype=dtype)
    expected = fp8_of(plain_round_fp8, weight, 32)
    with using_isa(isa):
        assert_equal(fp8_of(round_fp8, weight, 32), expected)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_groups_may_be_of_other_sizes(group_size: int) -> None:
    weight = draw(20, 256)
    expected = int4_of(plain_round_int4, weight, group_size)
    assert_equal(int4_of(round_int4, weight, group_size), expected)
    expected = int8_of(plain_round_int8, weight, group_size)
    assert_equal(int8_of(round_int8, weight, group_size), expected)
    weight = draw(20, 200)
    assert_equal(fp8_of(round_fp8, weight, group_size), fp8_of(plain_round_fp8, weight, group_size))


def rounded_by_all(weight: torch.Tensor) -> list[list[torch.Tensor]]:
    return [
        int4_of(round_int4, weight, 32),
        int8_of(round_int8, weight, 32),
        fp8_of(round_fp8, weight, 32),
    ]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_group_alone(value: float) -> None:
    weight = draw(40, 96)
    places = [(0, 0), (7, 95), (39, 40)]
    whole = rounded_by_all(weight)
    for place in places:
        weight[place] = value
    spoilt = torch.zeros(40, 3, dtype=torch.bool)
    for row, column in places:
        spoilt[row, column // 32] = True
    found = rounded_by_all(weight)
    for own, before in zip(found, whole, strict=True):
        assert bool((own[1].isfinite() == ~spoilt).all())
        for each, other in zip(own, before, strict=True):
            kept = ~spoilt.unsqueeze(-1).expand(40, 3, each[0].numel() // 3)
            assert torch.equal(each.view(kept.shape)[kept], other.view(kept.shape)[kept])


def test_nothing_is_written_behind_the_last_group() -> None:
    weight, room = draw(3, 20), torch.full((3 * 20 + 64,), 7, dtype=torch.uint8)
    codes = room[: 3 * 20].view(3, 20).view(torch.float8_e4m3fn)
    scales = torch.full((3 + 16,), 5.0).to(torch.bfloat16)
    round_fp8(weight, 32, codes, scales[:3])
    assert bool((room[3 * 20 :] == 7).all())
    assert bool((scales[3:] == 5).all())
