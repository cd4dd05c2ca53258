"""Products with quantised weights on CPUs: the bits of those with what the weights stand for, however they are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pytest
import torch

from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear, packed_parts
from pagemesh.kernels.linear.packed import Codebook, GroupInt, ScaledFp8
from pagemesh.kernels.linear.packed_parts import FormedRows, Order, form_of, place_panels
from pagemesh.kernels.linear.weight import Quantised, RowStack
from tests.support.cpu_isas import isas

BF16: Final = torch.bfloat16
FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def codes(num_outputs: int, num_bytes: int, most: int = 256) -> torch.Tensor:
    return torch.randint(0, most, (num_outputs, num_bytes), dtype=torch.uint8)


def halves(num_outputs: int, number: int, factor: float = 0.01) -> torch.Tensor:
    return (torch.rand(num_outputs, number) * factor).half()


def symmetric(out: int, inputs: int, dtype: torch.dtype, group: int = 32) -> Quantised:
    return GroupInt(dtype, codes(out, inputs // 2), halves(out, inputs // group), 4, group, 8)


def scales_of_any_sign(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """And zeros of both."""
    scales = (torch.randn(out, inputs // 32) / 100).half()
    scales[torch.rand(scales.shape) < 0.1] *= 0
    return GroupInt(dtype, codes(out, inputs // 2), scales, 4, 32, 8)


def powers_apart(out: int, inputs: int, dtype: torch.dtype, most: int = 98) -> Quantised:
    """Scales of a row's own size."""
    most = min(most, 4) if dtype == torch.float16 else most
    sizes = torch.exp2(torch.randint(-most, most + 1, (out, 1)).float())
    scales = (1 + torch.rand(out, inputs // 32)).bfloat16() * sizes.bfloat16()
    return GroupInt(dtype, codes(out, inputs // 2), scales, 4, 32, 8)


def powers_far_apart(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """Some of them nearer to the ends of bfloat16's exponents than powers of two may be moved."""
    return powers_apart(out, inputs, dtype, 119)


def zero_points(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    zeros = codes(out, inputs // 64, 16)
    scales = halves(out, inputs // 64)
    return GroupInt(dtype, codes(out, inputs // 2), scales, 4, 64, zero_points=zeros)


def minimums(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    least = halves(out, inputs // 32, 0.1).bfloat16()
    return GroupInt(dtype, codes(out, inputs), halves(out, inputs // 32), 8, 32, minimums=least)


def centre_and_minimums(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """As torchao's are; of both signs."""
    scales, least = torch.randn(2, out, inputs // 32) / 100
    return GroupInt(
        dtype,
        codes(out, inputs // 2),
        scales.bfloat16(),
        4,
        32,
        centre=8,
        minimums=least.bfloat16(),
    )


def long_scales(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """Whose products with codes have more digits than a float32."""
    zeros, scales = codes(out, inputs // 32), torch.randn(out, inputs // 32) / 100
    return GroupInt(dtype, codes(out, inputs), scales, 8, 32, zero_points=zeros)


def long_scales_and_minimums(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    zeros = codes(out, inputs // 32, 16)
    scales, least = torch.randn(2, out, inputs // 32) / 100
    return GroupInt(
        dtype, codes(out, inputs // 2), scales, 4, 32, zero_points=zeros, minimums=least
    )


def units(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """As Q4_K's are."""
    return GroupInt(
        dtype,
        codes(out, inputs // 2),
        codes(out, inputs // 32, 64),
        4,
        32,
        minimums=codes(out, inputs // 32, 64),
        scale_units=halves(out, inputs // 256),
        minimum_units=halves(out, inputs // 256),
    )


def small_groups(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """As Q6_K's are."""
    scales = torch.randint(-128, 128, (out, inputs // 16), dtype=torch.int8)
    factors = halves(out, inputs // 256, 0.001)
    return GroupInt(dtype, codes(out, inputs, 64), scales, 8, 16, 32, scale_units=factors)


def whole_rows(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    return GroupInt(dtype, codes(out, inputs), torch.rand(out, 1) / 100, 8, inputs, 128)


def bytes_about_a_centre(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """As Q8_0's are."""
    return GroupInt(dtype, codes(out, inputs), halves(out, inputs // 32), 8, 32, 128)


def bytes_about_any_centre(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """And with scales of both signs, and a zero."""
    scales = (torch.randn(out, inputs // 64) / 100).bfloat16()
    scales[0, 0] = 0
    return GroupInt(dtype, codes(out, inputs), scales, 8, 64, 77)


def large_scales(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """Which times 2^15 are beyond float32."""
    near = codes(out, inputs, 3) + 127
    scales = torch.randn(out, 1).bfloat16() * (2.0**113 if dtype != torch.float16 else 2.0)
    return GroupInt(dtype, near, scales, 8, inputs, 128)


def table(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    scales = torch.exp2(torch.randint(-9, -3, (out, inputs // 32)).float()).bfloat16()
    numbers = (*FP4, *(-number for number in FP4))
    return Codebook(dtype, codes(out, inputs // 2), scales, numbers, 32)


def powers_of_two(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    """As MXFP4's scales are."""
    scales = codes(out, inputs // 32, 8) + 117
    scales[0, 0] = 0
    numbers = (*FP4, *(-number for number in FP4))
    return Codebook(dtype, codes(out, inputs // 2), scales.view(torch.float8_e8m0fnu), numbers, 32)


def floats(out: int, inputs: int, dtype: torch.dtype) -> Quantised:
    numbers = codes(out, inputs)
    # But for NaN, all there are.
    numbers[(numbers & 127) == 127] = 3
    scales = torch.rand(out, -(-inputs // 128)) / 100
    return ScaledFp8(dtype, numbers.view(torch.float8_e4m3fn), scales, 128)


KINDS: Final[Mapping[str, Callable[[int, int, torch.dtype], Quantised]]] = {
    "symmetric": symmetric,
    "scales of any sign": scales_of_any_sign,
    "zero points": zero_points,
    "minimums": minimums,
    "centre and minimums": centre_and_minimums,
    "long scales": long_scales,
    "long scales and minimums": long_scales_and_minimums,
    "units": units,
    "small groups": small_groups,
    "whole rows": whole_rows,
    "bytes about a centre": bytes_about_a_centre,
    "bytes about any centre": bytes_about_any_centre,
    "large scales": large_scales,
    "table": table,
    "powers of two": powers_of_two,
    "floats": floats,
}
KINDS_HERE: Final = {
    **KINDS,
    "powers apart": powers_apart,
    "powers far apart": powers_far_apart,
}
all_kinds = pytest.mark.parametrize("kind", KINDS_HERE)
dtypes = pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(12)


@pytest.mark.product(sample=24)
@isas
@dtypes
@all_kinds
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"),
    [
        pytest.param(70, 768, id="whole parts"),
        pytest.param(32, 576, id="half a part more"),
        pytest.param(33, 320, id="filled up"),
    ],
)
def test_products_are_those_of_the_dense_weight(
    isa: CpuIsa, dtype: torch.dtype, kind: str, num_outputs: int, num_inputs: int
) -> None:
    if kind in ("units", "small groups"):
        num_inputs = -(-num_inputs // 256) * 256
    weight = KINDS_HERE[kind](num_outputs, num_inputs, dtype)
    assert form_of(weight, "singles") is not None
    bias = torch.randn(num_outputs).to(dtype)
    rows, residual = torch.randn(203, num_inputs).to(dtype), torch.randn(203, num_outputs).to(dtype)
    with using_isa(isa), torch.inference_mode():
        ours, dense = (make_linear(each, bias) for each in (weight, Dense(weight.dense())))
        for size in (1, 2, 7, 33, 203):
            assert torch.equal(ours(rows[:size]), dense(rows[:size]))
            added = ours.add_to(residual[:size], rows[:size])
            assert torch.equal(added, dense.add_to(residual[:size], rows[:size]))


@isas
@pytest.mark.parametrize("kind", ["symmetric", "centre and minimums", "whole rows"])
@pytest.mark.parametrize(
    ("num_inputs", "sizes"),
    [
        pytest.param(128, (40, 64), id="one part"),
        pytest.param(160, (40, 64), id="a step more"),
        pytest.param(256, (40, 64), id="two parts"),
        pytest.param(384, (40, 75), id="three parts"),
        pytest.param(416, (64, 75), id="three parts and a step"),
        pytest.param(2176, (300, 490), id="chunks of eight blocks"),
    ],
)
def test_products_of_many_rows_are_those_of_the_dense_weight(
    isa: CpuIsa, kind: str, num_inputs: int, sizes: tuple[int, int]
) -> None:
    weight = KINDS[kind](40, num_inputs, BF16)
    rows = torch.randn(max(sizes), num_inputs).bfloat16()
    with using_isa(isa), torch.inference_mode():
        ours, dense = (make_linear(each) for each in (weight, Dense(weight.dense())))
        for size in sizes:
            assert torch.equal(ours(rows[:size]), dense(rows[:size]))


@pytest.mark.product(sample=12)
@isas
@all_kinds
def test_gates_and_ups_may_be_packed(isa: CpuIsa, kind: str) -> None:
    weight = KINDS_HERE[kind](2 * 35, 512, BF16)
    bias, rows = torch.randn(70).bfloat16(), torch.randn(40, 512).bfloat16()
    with using_isa(isa), torch.inference_mode():
        ours, dense = (
            make_gated_linear(each, bias, Gate("silu")) for each in (weight, Dense(weight.dense()))
        )
        for size in (1, 40):
            assert torch.equal(ours(rows[:size]), dense(rows[:size]))


@isas
def test_rows_of_several_kinds_are_multiplied_kind_by_kind(isa: CpuIsa) -> None:
    parts = units(40, 512, BF16), small_groups(24, 512, BF16), Dense(torch.randn(9, 512).bfloat16())
    weight = RowStack(parts)
    bias, rows = torch.randn(73).bfloat16(), torch.randn(5, 512).bfloat16()
    residual = torch.randn(5, 73).bfloat16()
    with using_isa(isa), torch.inference_mode():
        ours, dense = (make_linear(each, bias) for each in (weight, Dense(weight.dense())))
        assert torch.equal(ours(rows), dense(rows))
        assert torch.equal(ours.add_to(residual, rows), dense.add_to(residual, rows))
        stack = RowStack(parts[:2])
        gated, of_dense = (
            make_gated_linear(each, None, Gate("silu"))(rows)
            for each in (stack, Dense(stack.dense()))
        )
        assert torch.equal(gated, of_dense)


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(lambda: symmetric(40, 96, BF16, group=8), id="groups of 8"),
        pytest.param(lambda: symmetric(40, 192, BF16, group=96), id="groups of 96"),
    ],
)
def test_what_fits_no_part_is_multiplied_as_what_it_stands_for(
    weight: Callable[[], Quantised],
) -> None:
    made = weight()
    assert form_of(made, "pairs") is None
    rows = torch.randn(3, made.shape[1]).bfloat16()
    with torch.inference_mode():
        assert torch.equal(make_linear(made)(rows), make_linear(Dense(made.dense()))(rows))


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("symmetric", 4.5), ("zero points", 4.5), ("units", 4.75), ("whole rows", 8.25)],
)
def test_packing_takes_no_more_than_codes_and_scales(kind: str, bits: float) -> None:
    weight = KINDS[kind](64, 1024, BF16)
    form = form_of(weight, "columns")
    assert form is not None
    panels = place_panels(FormedRows(weight, form), torch.arange(64))
    assert panels.nbytes * 8 / (64 * 1024) <= bits


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("symmetric", True),
        ("scales of any sign", True),
        ("powers apart", True),
        ("powers far apart", False),
        ("zero points", False),
        ("centre and minimums", False),
        ("bytes about a centre", False),
        ("table", False),
    ],
)
def test_digits_are_shared_where_scales_have_nothing_beside_them(kind: str, shares: bool) -> None:
    form = form_of(KINDS_HERE[kind](64, 1024, BF16), "columns")
    assert form is not None
    assert form.shares_digits is shares


@isas
def test_what_a_scale_of_0_makes_0_adds_nothing(isa: CpuIsa) -> None:
    weight = symmetric(40, 320, BF16)
    weight.scales[:, ::2] = 0
    weight.scales[7] = 0
    rows = torch.randn(3, 320).bfloat16() * 1e3
    with using_isa(isa), torch.inference_mode():
        products = make_linear(weight)(rows)
    assert torch.equal(products[:, 7], torch.zeros(3, dtype=BF16))
    assert products[:, 8].all()


@pytest.mark.parametrize("order", ["columns", "pairs"])
@pytest.mark.parametrize("kind", ["symmetric", "zero points", "units", "whole rows"])
def test_panels_are_the_same_however_many_are_made_at_once(
    kind: str, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = KINDS[kind](160, 512, BF16)
    form = form_of(weight, order)
    assert form is not None
    columns = torch.randperm(160)
    at_once = place_panels(FormedRows(weight.take_rows(columns), form), torch.arange(160))
    for num_panels in (1, 2, 5):
        monkeypatch.setattr(packed_parts, "_PIECE_CODES", num_panels * 32 * 512)
        assert torch.equal(place_panels(FormedRows(weight, form), columns), at_once)
