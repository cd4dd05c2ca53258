"""Products of whole numbers of 8 bits: the bits that their definition says, on every processor and in any company."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.dispatch import using
from pagemesh.kernels.expert_choice import Choices
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.jit.byte_dots import has_quad_dots
from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas, using_isa
from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear
from pagemesh.kernels.linear import cpu as cpu_linear
from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.panel_packing import Int8Order, int8_order
from pagemesh.kernels.linear.weight import RowStack, stack_matrices
from tests.support.cpu_isas import isas
from tests.unit.kernels.quantised import channel_int8

Floats = npt.NDArray[np.float32]
BF16: Final = torch.bfloat16
STATIC: Final = torch.tensor([[0.013]])

dtypes = pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
statics = pytest.mark.parametrize(
    "input_scale", [pytest.param(None, id="dynamic"), pytest.param(STATIC, id="static")]
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


def defined(weight: ChannelInt8, inputs: torch.Tensor) -> torch.Tensor:
    """float32 [T, out]: sums as int64, all else step by step in float32."""
    rows: Floats = inputs.float().numpy()
    largest = np.abs(rows).max(1, keepdims=True)
    one, most = np.float32(1), np.float32(127)
    if weight.input_scale is None:
        # Rows of zeros have no scale.
        is_zero = largest < np.float32(2.0**-100)
        divisor = np.where(is_zero, one, largest)
        scales = np.where(is_zero, np.float32(0), largest / most)
        factors = np.where(is_zero, np.float32(0), most / divisor)
    else:
        scales = np.broadcast_to(weight.input_scale.numpy(), largest.shape)
        factors = one / scales
    codes = np.clip(np.rint(rows * factors), -128, 127).astype(np.int64)
    sums = codes @ weight.codes.numpy().astype(np.int64).T
    assert np.abs(sums).max() < 2**31
    return torch.from_numpy(sums.astype(np.float32) * (scales * weight.scales.numpy().T))


@pytest.mark.product(sample=30)
@isas
@dtypes
@statics
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"),
    [
        pytest.param(70, 121, id="filled up"),
        pytest.param(64, 768, id="whole panels"),
        pytest.param(33, 3, id="less than a step"),
        pytest.param(9, 4160, id="long rows"),
    ],
)
def test_products_are_those_of_whole_numbers(
    isa: CpuIsa,
    dtype: torch.dtype,
    input_scale: torch.Tensor | None,
    num_outputs: int,
    num_inputs: int,
) -> None:
    weight = replace(channel_int8((num_outputs, num_inputs), dtype), input_scale=input_scale)
    bias = torch.randn(num_outputs).to(dtype)
    rows, residual = torch.randn(203, num_inputs).to(dtype), torch.randn(203, num_outputs).to(dtype)
    rows[3] = 0
    expected = defined(weight, rows) + bias.float()
    with using_isa(isa), torch.inference_mode():
        linear = make_linear(weight, bias)
        for size in (1, 2, 7, 16, 33, 203):
            assert torch.equal(linear(rows[:size]), expected[:size].to(dtype))
            added = expected[:size] + residual[:size].float()
            assert torch.equal(linear.add_to(residual[:size], rows[:size]), added.to(dtype))


@isas
def test_every_instruction_of_a_class_gives_the_same(
    isa: CpuIsa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that this processor has better ones than, too."""
    weight, rows = channel_int8((70, 130), BF16), torch.randn(40, 130).bfloat16()
    expected = defined(weight, rows).bfloat16()
    with using_isa(isa), torch.inference_mode():
        orders: list[Int8Order] = ["words", "quads"] if has_quad_dots() else ["words"]
        for order in orders:
            monkeypatch.setattr(cpu_linear, "int8_order", lambda order=order: order)
            assert torch.equal(make_linear(weight)(rows), expected)


def test_a_class_uses_the_best_that_it_has() -> None:
    found = {}
    for isa in processor_isas():
        with using_isa(isa):
            found[isa] = int8_order()
    assert found.get(CpuIsa.AVX2, "words") == found.get(CpuIsa.GENERIC, "words") == "words"
    assert found.get(CpuIsa.AMX, "tiles") != "words"


@pytest.mark.product(sample=12)
@isas
@statics
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_is_the_same_bits_in_any_company(
    isa: CpuIsa, input_scale: torch.Tensor | None, num_threads: int
) -> None:
    weight = replace(channel_int8((700, 1100), torch.float32), input_scale=input_scale)
    rows = torch.randn(512, 1100) * torch.logspace(-3, 3, 512).unsqueeze(1)
    with using_isa(isa), threads(num_threads), torch.inference_mode():
        linear = make_linear(weight)
        together = linear(rows)
        for size in (1, 2, 3, 7, 16, 33, 64, 150):
            part = slice(40, 40 + size)
            assert torch.equal(linear(rows[part]), together[part])


@isas
def test_the_longest_rows_do_not_overflow(isa: CpuIsa) -> None:
    num_inputs = ChannelInt8.most_inputs
    codes = torch.full((2, num_inputs), -128, dtype=torch.int8)
    codes[1] = 127
    weight = ChannelInt8(torch.float32, codes, torch.ones(2, 1), torch.ones(1, 1))
    rows = torch.full((2, num_inputs), -500.0)
    rows[1] = 500
    with using_isa(isa), torch.inference_mode():
        product = make_linear(weight)(rows)
    exact = torch.tensor([[128 * 128, -128 * 127], [-128 * 127, 127 * 127]]) * num_inputs
    assert product.tolist() == exact.float().tolist()


@isas
@statics
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("place", [0, 36])
def test_what_is_no_number_spoils_its_own_row(
    isa: CpuIsa, input_scale: torch.Tensor | None, value: float, place: int
) -> None:
    weight = replace(channel_int8((40, 37), BF16), input_scale=input_scale)
    rows = torch.randn(5, 37).bfloat16()
    with using_isa(isa), torch.inference_mode():
        linear = make_linear(weight)
        expected = linear(rows)
        rows[2, place] = value
        product = linear(rows)
    assert product[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(product[others], expected[others])


@isas
def test_rows_of_next_to_nothing_are_zeros(isa: CpuIsa) -> None:
    weight, bias = channel_int8((40, 64), torch.float32), torch.randn(40)
    rows = torch.zeros(4, 64)
    rows[1, 5], rows[2, 5], rows[3, 5] = 1e-45, 2.0**-101, 2.0**-100
    with using_isa(isa), torch.inference_mode():
        product = make_linear(weight, bias)(rows)
        assert torch.equal(product[:3], bias.expand(3, 40))
        (last,) = make_linear(weight)(rows[3:])
    assert torch.equal(last, defined(weight, rows[3:])[0])
    assert last.any()


@isas
def test_half_way_is_rounded_to_even(isa: CpuIsa) -> None:
    weight = ChannelInt8(
        torch.float32, torch.eye(8, dtype=torch.int8), torch.ones(8, 1), torch.ones(1, 1)
    )
    rows = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -128.5]])
    with using_isa(isa), torch.inference_mode():
        product = make_linear(weight)(rows)
    assert product.tolist() == [[0, 2, 2, 0, -2, 126, 127, -128]]


@isas
def test_rows_may_lie_anyhow(isa: CpuIsa) -> None:
    weight, rows = channel_int8((40, 70), BF16), torch.randn(70, 9).bfloat16().t()
    wide = torch.randn(9, 200).bfloat16()
    with using_isa(isa), torch.inference_mode():
        linear = make_linear(weight)
        assert torch.equal(linear(rows), linear(rows.contiguous()))
        part = wide[::2, 30:100]
        assert torch.equal(linear(part), linear(part.contiguous()))


@isas
@dtypes
@pytest.mark.parametrize("num_outputs", [16, 35])
def test_gates_are_applied_to_the_products(
    isa: CpuIsa, dtype: torch.dtype, num_outputs: int
) -> None:
    weight = channel_int8((2 * num_outputs, 120), dtype)
    bias, rows = torch.randn(2 * num_outputs).to(dtype), torch.randn(29, 120).to(dtype)
    gates, ups = (defined(weight, rows) + bias.float()).chunk(2, 1)
    expected = torch.nn.functional.silu(gates) * ups
    with using_isa(isa), torch.inference_mode():
        linear = make_gated_linear(weight, bias, Gate("silu"))
        product = linear(rows)
        assert torch.equal(linear(rows[7:8]), product[7:8])
    digits = {BF16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(product.float(), expected, rtol=digits, atol=digits)


@isas
def test_rows_of_several_scales_are_multiplied_part_by_part(isa: CpuIsa) -> None:
    first = replace(channel_int8((40, 96), BF16), input_scale=torch.tensor([[0.25]]))
    second = replace(channel_int8((24, 96), BF16), input_scale=torch.tensor([[0.5]]))
    dense, rows = Dense(torch.randn(16, 96).bfloat16()), torch.randn(5, 96).bfloat16()
    with using_isa(isa), torch.inference_mode():
        parts = first, second, dense
        together = make_linear(RowStack(parts))(rows)
        assert torch.equal(together, torch.cat([make_linear(each)(rows) for each in parts], 1))
        gated = make_gated_linear(RowStack(parts), None, Gate("silu"))(rows)
    gates, ups = together.float().chunk(2, 1)
    expected = torch.nn.functional.silu(gates) * ups
    torch.testing.assert_close(gated.float(), expected, rtol=1e-2, atol=1e-2)


@statics
@dtypes
def test_the_reference_is_the_definition(
    dtype: torch.dtype, input_scale: torch.Tensor | None
) -> None:
    weight = replace(channel_int8((40, 96), dtype), input_scale=input_scale)
    stack = RowStack((weight, Dense(torch.zeros(1, 96, dtype=dtype))))
    rows, residual = torch.randn(9, 96).to(dtype), torch.randn(9, 40).to(dtype)
    rows[2], rows[4, 3] = 0, torch.nan
    with using("reference"):
        plain, stacked = (make_linear(each) for each in (weight, stack))
    ours = make_linear(weight)
    for linear in (plain, lambda rows: stacked(rows)[:, :40]):
        assert torch.equal(_bits(linear(rows)), _bits(ours(rows)))
    assert torch.equal(_bits(plain.add_to(residual, rows)), _bits(ours.add_to(residual, rows)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float().nan_to_num(1e9)


def test_experts_multiply_whole_numbers() -> None:
    ups, downs = channel_int8((3, 32, 16), BF16), channel_int8((3, 16, 16), BF16)
    hidden, gate = torch.randn(5, 16).bfloat16(), Gate("silu")
    choices = Choices(torch.ones(5, 1).bfloat16(), torch.tensor([[0], [2], [1], [0], [2]]))
    with torch.inference_mode():
        experts = make_experts(Stack(ups, None), Stack(downs, None), gate)
        output = experts(hidden, choices)
        for row, (expert,) in enumerate(choices.experts.tolist()):
            expand = make_gated_linear(ups.matrix(expert), None, gate)
            down = make_linear(downs.matrix(expert))
            assert torch.equal(output[row], down(expand(hidden[row : row + 1]))[0])
        with using("reference"):
            plain = make_experts(Stack(ups, None), Stack(downs, None), gate)(hidden, choices)
    torch.testing.assert_close(output, plain, rtol=0.05, atol=0.05)


def test_experts_that_are_quantised_differently_are_refused() -> None:
    weight = channel_int8((8, 16), BF16)
    others: tuple[Any, ...] = (Dense(weight.dense()), replace(weight, input_scale=STATIC))
    for other in others:
        with pytest.raises(ConfigError, match="some of a layer's experts"):
            stack_matrices([weight, other])


def test_rows_of_whole_numbers_take_half_the_memory_of_bfloat16() -> None:
    weight = channel_int8((64, 256), BF16)
    assert weight.num_bytes == 64 * (256 + 4)
