"""Products of floats of 8 bits in Triton: sums of 128 inputs, scaled and added up as float32 in the order of a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
import torch

from pagemesh.kernels.expert_choice import Choices
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear
from pagemesh.kernels.linear.cuda_weight import KernelWeight
from pagemesh.kernels.linear.packed import ScaledFp8
from pagemesh.kernels.linear.rows_kernel import fp8_rows
from pagemesh.kernels.linear.tiles import num_segments
from pagemesh.kernels.linear.weight import RowStack
from pagemesh.kernels.target import TARGETS, playing

pytestmark = pytest.mark.usefixtures("in_triton")

STATIC: Final = 2.0**-4
# Runs of the weight's inputs, those of a row, and the scale of all rows.
LAYOUTS: Final = {
    "rows": (0, 0, None),
    "rows, static": (0, 0, STATIC),
    "blocks": (128, 128, None),
    "blocks, whole rows": (128, 0, None),
    "blocks, static": (128, 0, STATIC),
    "long runs": (256, 128, None),
    "rows by runs": (0, 256, None),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)


def fp8(layout: str, *shape: int, dtype: torch.dtype = torch.float32) -> ScaledFp8:
    """Scales are powers of two, so that a scaled sum is as exact as the sum."""
    *rows, num_inputs = shape
    run, row_run, static = LAYOUTS[layout]
    run = run or num_inputs
    return ScaledFp8(
        dtype,
        torch.randint(-15, 16, shape).float().to(torch.float8_e4m3fn),
        torch.exp2(torch.randint(-6, -2, (*rows, -(-num_inputs // run))).float()),
        run,
        row_run or num_inputs,
        None if static is None else torch.full((*rows, 1), static),
    )


def rows_of(num_rows: int, num_inputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of which the largest in each run is 7 or 14, a power of two below 448: codes are whole multiples of that, few
    enough that sums of 128 products are exact in float32, in whatever order an interpreter adds them up."""
    rows = torch.randint(-7, 8, (num_rows, num_inputs)).float()
    rows[:, ::64] = 7
    sizes = torch.exp2(torch.randint(0, 2, (num_rows, -(-num_inputs // 128))).float())
    return (rows * sizes.repeat_interleave(128, 1)[:, :num_inputs]).to(dtype)


def defined(weight: ScaledFp8, rows: torch.Tensor) -> torch.Tensor:
    """float32 [T, out]: exact sums of 128 inputs, then step by step."""
    num_inputs = rows.shape[1]
    codes, scales = quantised(weight, rows)
    assert weight.row_group is not None
    segments = num_segments(weight.shape[0], num_inputs)
    runs = range(-(-num_inputs // 128))
    begins = {segment * len(runs) // segments for segment in range(segments)}
    total = partial = torch.zeros(len(rows), weight.shape[0])
    for run in runs:
        if run in begins:
            total, partial = total + partial, torch.zeros_like(partial)
        inputs = slice(run * 128, run * 128 + 128)
        product = codes[:, inputs].double() @ weight.numbers[:, inputs].double().t()
        scale = (
            scales[:, run * 128 // weight.row_group]
            * weight.scales[:, run * 128 // weight.group_size, None]
        )
        partial = partial + (product.t() * scale).t().float()
    return total + partial


def quantised(weight: ScaledFp8, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes as float32 [T, in] and scales [T, runs], by torch."""
    assert weight.row_group is not None
    starts = range(0, rows.shape[1], weight.row_group)
    pieces = [rows[:, start : start + weight.row_group].float() for start in starts]
    codes, scales = [], []
    for piece in pieces:
        largest, most = piece.abs().amax(1, keepdim=True), torch.tensor(448.0)
        is_zero = largest < 2.0**-100
        scale = (largest / most).masked_fill(is_zero, 0)
        factor = (most / largest).masked_fill(is_zero, 0)
        if weight.input_scales is not None:
            scale = weight.input_scales.amax().expand_as(scale)
            factor = 1 / scale
        rounded = (piece * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
        codes.append(rounded.float())
        scales.append(scale)
    return torch.cat(codes, 1), torch.cat(scales, 1)


@pytest.mark.product(sample=8)
@dtypes
@layouts
@pytest.mark.parametrize("num_inputs", [160, 768])
def test_sums_of_128_inputs_are_scaled_and_added_in_order(
    is_split: bool, dtype: torch.dtype, layout: str, num_inputs: int
) -> None:
    weight = fp8(layout, 70, num_inputs, dtype=dtype)
    bias = torch.randn(70).to(dtype)
    rows, residual = rows_of(37, num_inputs, dtype), torch.randn(37, 70).to(dtype)
    rows[3] = 0
    expected = defined(weight, rows) + bias.float()
    linear = make_linear(weight, bias)
    for size in (1, 37):
        assert torch.equal(linear(rows[:size]), expected[:size].to(dtype))
    added = expected + residual.float()
    assert torch.equal(linear.add_to(residual, rows), added.to(dtype))


@layouts
def test_products_are_near_those_of_the_numbers_that_codes_stand_for(layout: str) -> None:
    """Numbers are any. A float32 loses 2^-24 of each of up to 128 + 4 sums, none larger than that of distances from 0."""
    run, _, _ = LAYOUTS[layout]
    weight = fp8(layout, 40, 512)
    weight = replace(
        weight,
        numbers=torch.randn(40, 512).to(torch.float8_e4m3fn),
        scales=torch.rand(40, 512 // (run or 512)),
    )
    rows = torch.randn(20, 512)
    codes, scales = quantised(weight, rows)
    assert weight.row_group is not None
    values = codes.double() * scales.double().repeat_interleave(weight.row_group, 1)
    numbers = replace(weight, dtype=torch.float64).dense()
    bound = 132 * 2.0**-24 * (values.abs() @ numbers.abs().t())
    assert ((make_linear(weight)(rows) - values @ numbers.t()).abs() <= bound).all()


@pytest.mark.parametrize("group", [0, 128])
def test_rows_are_the_nearest_codes(group: int) -> None:
    """Half way to the even one; subnormals, and what is too large for a scale that is given, too."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (codes[1:] + codes[:-1]) / 2
    beside = torch.cat([torch.nextafter(halves, each) for each in (codes[1:], codes[:-1])])
    found = torch.cat([codes, halves, beside, torch.tensor([449.0, 1e30, 2.0**-126])])
    row = torch.cat([found, -found, torch.zeros(-2 * len(found) % 128)]).unsqueeze(0)
    given = torch.ones(1)
    made, scales = fp8_rows(row, given, group)
    expected = row.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(made.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scales[:, 0], torch.ones(row.shape[1] // group if group else 1))


def test_long_rows_have_one_scale_or_those_of_their_runs() -> None:
    rows = torch.randn(3, 5000)
    for group in (0, 128):
        run = group or 5000
        weight = ScaledFp8(torch.float32, torch.empty(0), torch.empty(0), run, run)
        codes, scales = fp8_rows(rows, None, group)
        expected, expected_scales = quantised(weight, rows)
        assert torch.equal(codes.float(), expected)
        assert torch.equal(scales.t(), expected_scales)


@layouts
def test_rows_that_are_not_finite_give_nan_and_others_do_not(layout: str) -> None:
    weight, rows = fp8(layout, 9, 256), rows_of(6, 256)
    rows[0, 3], rows[1, 200], rows[2, 0] = torch.nan, torch.inf, -torch.inf
    rows[3] = 2.0**-101
    found = make_linear(weight)(rows)
    assert found.isnan().all(1).tolist() == [True, True, True, False, False, False]
    assert torch.equal(found[3:], defined(weight, rows[3:]))


@layouts
def test_gates_are_those_of_their_products(layout: str) -> None:
    weight, rows = fp8(layout, 70, 256), rows_of(5, 256) / 256
    gates, ups = (
        defined(replace(weight, numbers=n, scales=s), rows)
        for n, s in zip(weight.numbers.chunk(2), weight.scales.chunk(2), strict=True)
    )
    found = make_gated_linear(weight, None, Gate("silu"))(rows)
    torch.testing.assert_close(found, gates.sigmoid() * gates * ups, rtol=1e-5, atol=1e-5)


@layouts
def test_experts_are_those_of_their_products(layout: str) -> None:
    """Bit for bit those of one expert alone, of a token alone."""
    ups, downs = fp8(layout, 3, 80, 256), fp8(layout, 3, 256, 40)
    hidden = rows_of(9, 256) / 1024
    choices = Choices(torch.ones(9, 1), torch.randint(0, 3, (9, 1)))
    found = make_experts(Stack(ups, None), Stack(downs, None), Gate("silu"))(hidden, choices)
    for token, expert in enumerate(choices.experts.flatten().tolist()):
        activate = make_gated_linear(ups.matrix(expert), None, Gate("silu"))
        project = make_linear(downs.matrix(expert))
        assert torch.equal(found[token], project(activate(hidden[token : token + 1]))[0])


def test_a_product_takes_the_largest_of_its_matrices_scales_for_rows() -> None:
    first, second = fp8("rows, static", 40, 256), fp8("rows, static", 30, 256)
    assert second.input_scales is not None
    both = first.above([replace(second, input_scales=second.input_scales * 4)])
    assert both is not None
    rows = rows_of(5, 256)
    assert torch.equal(make_linear(both)(rows), defined(both, rows))


def test_gates_and_ups_of_which_one_takes_codes_are_multiplied_apart() -> None:
    gates, ups = fp8("rows", 40, 256), Dense(torch.randn(40, 256) / 64)
    rows = rows_of(5, 256) / 64
    found = make_gated_linear(RowStack((gates, ups)), None, Gate("silu"))(rows)
    own, other = make_linear(gates)(rows), make_linear(ups)(rows)
    torch.testing.assert_close(found, own.sigmoid() * own * other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("capability", "group", "row_group"),
    [
        pytest.param(86, 128, 128, id="no units for them"),
        pytest.param(90, 64, 128, id="runs that are shorter than sums"),
        pytest.param(90, 128, 64, id="runs of a row that are shorter than sums"),
        pytest.param(90, 128, 384, id="runs of a row that are no power of two"),
        pytest.param(90, 128, None, id="not asked for"),
    ],
)
def test_other_weights_are_multiplied_as_what_they_stand_for(
    capability: int, group: int, row_group: int | None
) -> None:
    weight = replace(fp8("rows", 40, 512), row_group=row_group, group_size=group)
    weight = replace(weight, scales=torch.rand(40, 512 // group))
    rows = torch.randn(3, 512)
    with playing(TARGETS[capability]):
        form = KernelWeight(weight).arguments["FORM"]
        assert getattr(form, "codes", None) == "e4m3"
        assert torch.equal(make_linear(weight)(rows), make_linear(Dense(weight.dense()))(rows))
