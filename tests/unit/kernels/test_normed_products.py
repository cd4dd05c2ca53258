"""Norms between two products in Triton, which have no kernel of their own while rows are few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagemesh.kernels.launch import is_interpreted
from pagemesh.kernels.linear import (
    Dense,
    Gate,
    NormedProduct,
    Weight,
    make_gated_linear,
    make_linear,
    make_normed_product,
)
from pagemesh.kernels.linear.cuda import CudaSumNorm
from pagemesh.kernels.linear.interface import StepwiseSumNorm
from pagemesh.kernels.linear.weight import RowStack
from pagemesh.kernels.rms_norm import make_rms_norm
from pagemesh.kernels.rms_norm.cuda import CudaRmsNorm
from pagemesh.kernels.rms_norm.interface import ReferenceRmsNorm, UnscaledRows
from tests.unit.kernels.quantised import channel_int8, int4
from tests.unit.kernels.test_linear import exact

pytestmark = pytest.mark.usefixtures("in_triton")

NUM_OUTPUTS = 72
MOST_ROWS = 260
"""More than have sums of squares: of these the scales are known."""

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# A part of a run, and some of which the last is a part.
sizes = pytest.mark.parametrize("size", [24, 136])


def norm_of(size: int) -> CudaRmsNorm:
    """With weights by which products of halves are exact."""
    norm = make_rms_norm(2.0 ** torch.randint(-1, 2, (size,)), 1e-3)
    assert isinstance(norm, CudaRmsNorm)
    return norm


def follow(norm: CudaRmsNorm, weight: Weight, bias: torch.Tensor, *, gated: bool) -> NormedProduct:
    if gated:
        return make_normed_product(norm, make_gated_linear(weight, bias, Gate("silu")))
    return make_normed_product(norm, make_linear(weight, bias))


gates = pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])


@pytest.mark.product(sample=4)
@dtypes
@pytest.mark.parametrize("size", [24, 136, 1100], ids=str)
@gates
def test_a_normed_product_is_its_definition(
    is_split: bool, dtype: torch.dtype, size: int, gated: bool
) -> None:
    norm_weight = torch.rand(size) + 0.5
    weight = (torch.randn(NUM_OUTPUTS, size) / size**0.5).to(dtype)
    bias = torch.randn(NUM_OUTPUTS).to(dtype)
    hidden = (3 * torch.randn(MOST_ROWS, size)).to(dtype)
    norm = make_rms_norm(norm_weight, 0.5)
    assert isinstance(norm, CudaRmsNorm)
    product = follow(norm, Dense(weight), bias, gated=gated)
    normed = ReferenceRmsNorm(norm_weight.double(), 0.5)(hidden.double())
    sums = normed @ weight.double().t() + bias.double()
    if gated:
        gate, up = sums.chunk(2, 1)
        sums = torch.nn.functional.silu(gate) * up
    # The interpreter cuts bfloat16 off where a GPU rounds.
    tolerance = 1e-4 if dtype == torch.float32 else 0.1 if is_interpreted() else 0.03
    for num_rows in (3, MOST_ROWS):
        found = product.multiply(product.norm(hidden[:num_rows])).double()
        torch.testing.assert_close(found, sums[:num_rows], rtol=tolerance, atol=tolerance)


@pytest.mark.product(sample=4)
@dtypes
@sizes
@gates
def test_rows_are_the_same_bits_whoever_sums_their_squares(
    is_split: bool, dtype: torch.dtype, size: int, gated: bool
) -> None:
    before = make_linear(Dense(exact(size, 640, dtype=dtype, num_zeros=14)))
    weight = Dense(exact(NUM_OUTPUTS, size, dtype=dtype, num_zeros=14))
    product = follow(norm_of(size), weight, exact(NUM_OUTPUTS, dtype=dtype), gated=gated)
    inputs = exact(MOST_ROWS, 640, dtype=dtype, num_zeros=14)
    residual = exact(MOST_ROWS, 2 * size, dtype=dtype)[:, size:]
    hidden, normed = product.norm.of_sum(before, residual, inputs)
    assert torch.equal(hidden, before.add_to(residual, inputs))
    together = product.multiply(normed)
    for begin, end in ((0, 1), (3, 20), (100, 170), (3, MOST_ROWS)):
        part = slice(begin, end)
        summed, left = product.norm.of_sum(before, residual[part], inputs[part])
        alone = product.norm(hidden[part])
        assert isinstance(left, UnscaledRows)
        assert isinstance(alone, UnscaledRows)
        assert torch.equal(summed, hidden[part])
        assert torch.equal(left.weighted, alone.weighted)
        assert torch.equal(left.squares, alone.squares)
        assert torch.equal(product.multiply(left), together[part])


@pytest.mark.parametrize(("size", "most"), [(64, 256), (8193, 64)])
def test_of_more_rows_the_scales_are_computed_once(size: int, most: int) -> None:
    product = follow(norm_of(size), Dense(torch.ones(1, size)), torch.zeros(1), gated=False)
    for num_rows, num_dimensions in ((most, 2), (most + 1, 1)):
        rows = product.norm(torch.ones(num_rows, size))
        assert isinstance(rows, UnscaledRows)
        assert rows.squares.ndim == num_dimensions


def test_packed_weights_give_the_bits_of_what_they_stand_for() -> None:
    packed = int4((NUM_OUTPUTS, 128), torch.float32)
    bias, hidden = torch.randn(NUM_OUTPUTS), torch.randn(5, 128)
    norm = norm_of(128)
    ours, dense = (
        follow(norm, weight, bias, gated=False) for weight in (packed, Dense(packed.dense()))
    )
    assert isinstance(ours.norm, CudaSumNorm)
    assert torch.equal(ours.multiply(ours.norm(hidden)), dense.multiply(dense.norm(hidden)))


def test_a_product_of_codes_leaves_rows_too() -> None:
    before = make_linear(channel_int8((64, 96), torch.float32))
    product = follow(norm_of(64), Dense(torch.randn(8, 64)), torch.zeros(8), gated=False)
    inputs, residual = torch.randn(3, 96), torch.randn(3, 64)
    hidden, left = product.norm.of_sum(before, residual, inputs)
    assert torch.equal(hidden, before.add_to(residual, inputs))
    assert torch.equal(product.multiply(left), product.multiply(product.norm(hidden)))


def test_nothing_beside_rows_is_written(is_split: bool) -> None:
    before = make_linear(Dense(torch.randn(72, 640)))
    norm = norm_of(72)
    product = follow(norm, Dense(torch.randn(8, 72)), torch.zeros(8), gated=False)
    allocate: Callable[..., torch.Tensor] = torch.Tensor.new_empty
    around = []

    def wide(tensor: torch.Tensor, *sizes: Any, **options: torch.dtype) -> torch.Tensor:
        first, *others = sizes[0] if isinstance(sizes[0], tuple) else sizes
        rows = allocate(tensor, first + 2, *others, **options).fill_(7)
        around.append(rows)
        return rows[1:-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", wide)
        product.norm.of_sum(before, torch.randn(5, 72), torch.randn(5, 640))
        product.norm(torch.randn(5, 72))
    assert len(around) >= 5
    for rows in around:
        assert (rows[0] == 7).all()
        assert (rows[-1] == 7).all()


OTHERS: dict[str, Callable[[], Weight]] = {
    "float16": lambda: Dense(torch.ones(8, 128, dtype=torch.float16)),
    "rows that become codes": lambda: channel_int8((8, 128), torch.float32),
    "parts": lambda: RowStack((Dense(torch.ones(8, 128)), channel_int8((8, 128), torch.float32))),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_others_are_normed_first(make: Callable[[], Weight]) -> None:
    weight = make()
    product = make_linear(weight)
    norm = norm_of(128)
    normed = make_normed_product(norm, product)
    assert isinstance(normed.norm, StepwiseSumNorm)
    hidden = torch.randn(3, 128).to(weight.dtype)
    assert torch.equal(normed.multiply(normed.norm(hidden)), product(norm(hidden)))


def test_a_norm_of_another_kind_comes_first() -> None:
    product = make_linear(Dense(torch.randn(8, 128)))
    normed = make_normed_product(lambda rows: 2 * rows, product)
    hidden = torch.randn(3, 128)
    assert torch.equal(normed.multiply(normed.norm(hidden)), product(2 * hidden))
