"""Quantised weights: what they stand for, rows and matrices of them, and products with them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pagemesh.kernels.expert_choice import Choices
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear
from pagemesh.kernels.linear.packed import (
    Codebook,
    GroupInt,
    ScaledFp8,
    pack_halves,
    unpack_halves,
)
from pagemesh.kernels.linear.weight import RowStack, Weight, stack_matrices, stack_rows
from tests.unit.kernels.quantised import (
    KINDS,
    PLAIN_KINDS,
    TABLE,
    WEIGHTS_ALONE,
    int4,
    int4_act_order,
    int8,
    powers_of_two,
)

all_kinds = pytest.mark.parametrize("kind", KINDS)
weights_alone = pytest.mark.parametrize("kind", WEIGHTS_ALONE)
plain_kinds = pytest.mark.parametrize("kind", PLAIN_KINDS)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(11)


def on(device: torch.device, weight: Weight) -> Weight:
    parts = weight.parts if isinstance(weight, RowStack) else (weight,)
    moved = [part.moved(lambda tensor: tensor.to(device)) for part in parts]
    return RowStack(tuple(moved)) if isinstance(weight, RowStack) else moved[0]


def test_whole_numbers_stand_for_their_distance_from_the_zero_point_times_the_scale() -> None:
    codes = pack_halves(torch.tensor([[0, 5, 15, 7]], dtype=torch.uint8))
    assert codes.tolist() == [[0x50, 0x7F]]
    scales = torch.tensor([[0.5, 2.0]])
    weight = GroupInt(torch.float32, codes, scales, 4, 2, centre=8)
    assert weight.dense().tolist() == [[-4.0, -1.5, 14.0, -2.0]]
    assert float(weight.bound()) == 16.0
    zeros = torch.tensor([[3, 15]], dtype=torch.uint8)
    asymmetric = replace(weight, centre=0, zero_points=zeros)
    assert asymmetric.dense().tolist() == [[-1.5, 1.0, 0.0, -16.0]]
    minimum = replace(weight, centre=0, minimums=torch.tensor([[1.0, -3.0]]))
    assert minimum.dense().tolist() == [[-1.0, 1.5, 33.0, 17.0]]
    assert float(minimum.bound()) == 33.0
    ordered = replace(weight, input_groups=torch.tensor([[1, 0, 1, 0]], dtype=torch.int32))
    assert ordered.dense().tolist() == [[-16.0, -1.5, 14.0, -0.5]]


def test_units_are_shared_by_runs_of_scales() -> None:
    weight = GroupInt(
        torch.float32,
        torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8),
        torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8),
        8,
        1,
        minimums=torch.tensor([[0, 1, 0, 1]], dtype=torch.uint8),
        scale_units=torch.tensor([[0.5, 10.0]]),
        minimum_units=torch.tensor([[2.0, 100.0]]),
    )
    assert weight.dense().tolist() == [[0.5, 0.0, 90.0, 60.0]]


def test_a_codebook_stands_for_numbers_of_its_table() -> None:
    codes = torch.tensor([[0x10, 0xF8]], dtype=torch.uint8)
    weight = Codebook(torch.float32, codes, torch.tensor([[2.0, 3.0]]), TABLE, 2)
    assert weight.dense().tolist() == [[-16.0, -12.25, 0.0, 18.375]]
    assert float(weight.bound()) == 24.0
    powers = torch.tensor([[126, 130]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert replace(weight, scales=powers).dense().tolist() == [[-4.0, -3.0625, 0.0, 49.0]]
    no_number = torch.tensor([[126, 255]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert replace(weight, scales=no_number).bound().isnan()
    # Wherever in the table it is.
    table = (*weight.table[:5], math.nan, *weight.table[6:])
    assert replace(weight, table=table).bound().isnan()


def test_floats_of_8_bits_are_scaled_in_runs() -> None:
    numbers = torch.tensor([[1.0, -2.0, 448.0]]).to(torch.float8_e4m3fn)
    weight = ScaledFp8(torch.float32, numbers, torch.tensor([[0.5, 2.0]]), 2)
    assert weight.dense().tolist() == [[0.5, -1.0, 896.0]]
    assert float(weight.bound()) == 896.0
    broken = torch.tensor([[1.0, torch.nan, 0.0]]).to(torch.float8_e4m3fn)
    assert replace(weight, numbers=broken).bound().isnan()


@pytest.mark.parametrize("input_scale", [None, 0.25])
def test_a_cpu_leaves_rows_as_they_are_that_may_become_floats_of_8_bits(
    input_scale: float | None,
) -> None:
    numbers = torch.randn(2, 33, 256).to(torch.float8_e4m3fn)
    first, second = (
        ScaledFp8(
            torch.bfloat16,
            each,
            torch.rand(33, 2),
            128,
            128 if input_scale is None else 256,
            None if input_scale is None else torch.full((33, 1), input_scale * (number + 1)),
        )
        for number, each in enumerate(numbers)
    )
    weight = first.above([second])
    assert weight is not None
    rows = torch.randn(5, 256).bfloat16()
    assert torch.equal(make_linear(weight)(rows), make_linear(Dense(weight.dense()))(rows))


def test_weights_for_rows_of_other_kinds_are_no_weight_together() -> None:
    numbers = torch.randn(3, 256).to(torch.float8_e4m3fn)
    kept = ScaledFp8(torch.bfloat16, numbers, torch.rand(3, 2), 128)
    assert kept.above([replace(kept, row_group=128)]) is None


def test_values_are_rounded_once() -> None:
    """In float16 the product of scale and minimum alone would be rounded."""
    scales = torch.tensor([[0.1]], dtype=torch.float16)
    codes = torch.tensor([[255]], dtype=torch.uint8)
    zeros = torch.tensor([[1]], dtype=torch.uint8)
    weight = GroupInt(torch.bfloat16, codes, scales, 8, 1, zero_points=zeros)
    assert weight.dense().item() == torch.tensor(254 * scales.double().item()).bfloat16().item()


@plain_kinds
def test_tokens_are_looked_up_as_in_what_a_table_stands_for(kind: str) -> None:
    table = PLAIN_KINDS[kind]((6, 16), torch.bfloat16)
    token_ids = torch.tensor([3, 0, 3, 1])
    assert torch.equal(table.rows(token_ids), table.dense()[token_ids])


@plain_kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_is_farther_from_0_than_the_bound(kind: str, dtype: torch.dtype) -> None:
    weight = PLAIN_KINDS[kind]((6, 16), dtype)
    assert weight.dense().dtype == dtype
    assert float(weight.dense().abs().max()) <= float(weight.bound()) * 1.01 < 1e5


@all_kinds
def test_a_stack_has_matrices_and_rows(kind: str) -> None:
    stack = KINDS[kind]((3, 8, 16), torch.bfloat16)
    dense = stack.dense()
    assert stack.shape == dense.shape == (3, 8, 16)
    assert stack.dtype == dense.dtype == torch.bfloat16
    matrix = stack.matrix(1)
    assert matrix.shape == (8, 16)
    assert torch.equal(matrix.dense(), dense[1])
    order = torch.tensor([2, 0, 3, 1, 5, 4, 7, 6])
    assert torch.equal(stack.take_rows(order).dense(), dense[:, order])
    assert torch.equal(matrix.take_rows(order).dense(), dense[1, order])


def test_codes_of_4_bits_take_half_a_byte() -> None:
    weight = int4((6, 16), torch.bfloat16)
    assert weight.num_bytes == 6 * (8 + 2 * 2 + 2)
    assert RowStack((weight, int8((6, 16), torch.bfloat16))).num_bytes == 84 + 6 * (16 + 4)
    assert powers_of_two((6, 16), torch.bfloat16).num_bytes == 6 * (8 + 4)


@plain_kinds
def test_matrices_of_one_kind_are_stacked_in_it(kind: str) -> None:
    top, below = (PLAIN_KINDS[kind]((rows, 16), torch.bfloat16) for rows in (4, 2))
    if isinstance(top, GroupInt) and top.input_groups is not None:
        assert isinstance(below, GroupInt)
        below = replace(below, input_groups=top.input_groups)
    rows = stack_rows([top, below, top])
    assert type(rows) is type(top)
    assert torch.equal(rows.dense(), torch.cat([top.dense(), below.dense(), top.dense()]))
    matrices = stack_matrices([top, PLAIN_KINDS[kind]((4, 16), torch.bfloat16)])
    assert type(matrices) is type(top)
    assert (matrices.shape, matrices.num_bytes) == ((2, 4, 16), 2 * top.num_bytes)
    assert torch.equal(matrices.matrix(0).dense(), top.dense())


def test_what_differs_is_stacked_part_by_part() -> None:
    weight = int4((4, 16), torch.bfloat16)
    zeros = weight.zero_points
    assert zeros is not None
    others = (
        Dense(weight.dense()),
        int8((4, 16), torch.bfloat16),
        replace(weight, centre=1),
        replace(weight, scales=weight.scales.float()),
        replace(weight, zero_points=None),
        replace(weight, scales=weight.scales[:, :1], zero_points=zeros[:, :1], group_size=16),
    )
    for other in others:
        for stack in (stack_rows([weight, other]), stack_rows([other, weight])):
            assert isinstance(stack, RowStack)
        together = torch.stack([weight.dense(), other.dense()])
        assert torch.equal(stack_matrices([weight, other]).dense(), together)
    ordered = [int4_act_order((4, 16), torch.bfloat16) for _ in range(2)]
    assert isinstance(stack_rows(ordered), RowStack)
    # Of a stack each matrix has its own order.
    assert isinstance(stack_matrices(ordered), GroupInt)


def test_rows_of_one_kind_do_not_go_among_those_of_another() -> None:
    stack = RowStack((int4((4, 16), torch.bfloat16), int8((4, 16), torch.bfloat16)))
    for order in ([4, 1, 2, 3, 0, 5, 6, 7], [0, 1, 2, -1, 4, 5, 6, 7]):
        with pytest.raises(ValueError, match="cannot go among"):
            stack.take_rows(torch.tensor(order))


def test_halves_of_a_byte_are_packed_and_unpacked() -> None:
    codes = torch.randint(0, 16, (3, 8), dtype=torch.uint8)
    assert torch.equal(unpack_halves(pack_halves(codes)), codes)


@weights_alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_products_are_those_of_what_it_stands_for(
    device: torch.device, kind: str, dtype: torch.dtype
) -> None:
    weight = KINDS[kind]((10, 16), dtype)
    given, dense = on(device, weight), Dense(weight.dense().to(device))
    rows, bias = torch.randn(3, 16).to(dtype).to(device), torch.randn(10).to(dtype).to(device)
    assert torch.equal(make_linear(given, bias)(rows), make_linear(dense, bias)(rows))
    gate = Gate("silu")
    gated = make_gated_linear(given, None, gate)(rows)
    assert torch.equal(gated, make_gated_linear(dense, None, gate)(rows))


@weights_alone
def test_experts_are_those_of_what_it_stands_for(device: torch.device, kind: str) -> None:
    ups, downs = (KINDS[kind](shape, torch.float32) for shape in ((3, 32, 16), (3, 16, 16)))
    dense_ups, dense_downs = (Stack(Dense(w.dense().to(device)), None) for w in (ups, downs))
    given_ups, given_downs = (Stack(on(device, w), None) for w in (ups, downs))
    hidden = torch.randn(5, 16).to(device)
    choices = Choices(
        torch.rand(5, 2).to(device),
        torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0]]).to(device),
    )
    expected = make_experts(dense_ups, dense_downs, Gate("silu"))(hidden, choices)
    assert torch.equal(
        make_experts(given_ups, given_downs, Gate("silu"))(hidden, choices), expected
    )
