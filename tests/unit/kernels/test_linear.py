from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pagemesh.kernels.gated_activation import make_gated_activation
from pagemesh.kernels.linear import Gate, Linear, make_gated_linear, make_linear
from pagemesh.kernels.linear.dots import DotLinear, can_dot
from pagemesh.kernels.linear.packed import PackedLinear, can_pack
from pagemesh.kernels.linear.plain import PlainLinear

# Products of unit normals over 120 inputs: rounding of the type, times their typical size of 11.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.2}
Maker = Callable[[torch.Tensor, torch.Tensor | None], Linear]

NEEDS: dict[Maker, Callable[[torch.Tensor], bool]] = {
    PlainLinear: lambda weight: True,
    PackedLinear: can_pack,
    DotLinear: can_dot,
}
kinds = pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype)
        for kind in NEEDS
        for dtype in TOLERANCES
        if kind is not DotLinear or dtype == torch.bfloat16
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)


def make_weight(dtype: torch.dtype, num_outputs: int = 70, num_inputs: int = 120) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(num_outputs, num_inputs).to(dtype)


def make(kind: Maker, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    if not NEEDS[kind](weight):
        pytest.skip(f"this processor cannot multiply {weight.dtype} like that")
    return kind(weight, bias)


@kinds
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("num_rows", [1, 2, 37, 401])
def test_products_are_those_of_float64(
    kind: Maker, dtype: torch.dtype, with_bias: bool, num_rows: int
) -> None:
    weight = make_weight(dtype)
    bias = torch.randn(70).to(dtype) if with_bias else None
    inputs, residual = torch.randn(num_rows, 120).to(dtype), torch.randn(num_rows, 70).to(dtype)
    expected = inputs.double() @ weight.double().t()
    if bias is not None:
        expected += bias.double()
    linear = make(kind, weight, bias)
    before = residual.clone()
    with torch.inference_mode():
        product, total = linear(inputs), linear.add_to(residual, inputs)
    assert product.dtype == total.dtype == dtype
    torch.testing.assert_close(product.double(), expected, rtol=0, atol=TOLERANCES[dtype])
    torch.testing.assert_close(total.double(), expected + residual, rtol=0, atol=TOLERANCES[dtype])
    assert torch.equal(residual, before)


@kinds
def test_rows_may_be_strided(kind: Maker, dtype: torch.dtype) -> None:
    weight = make_weight(dtype)
    wide = torch.randn(5, 300).to(dtype)
    linear = make(kind, weight, None)
    expected = wide[:, 30:150].double() @ weight.double().t()
    with torch.inference_mode():
        product = linear(wide[:, 30:150]).double()
    torch.testing.assert_close(product, expected, rtol=0, atol=TOLERANCES[dtype])


@dtypes
@pytest.mark.parametrize("num_inputs", [72, 2048])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_is_the_same_bits_in_any_company(
    dtype: torch.dtype, num_inputs: int, num_threads: int
) -> None:
    linear = make_linear(make_weight(dtype, 700, num_inputs))
    rows, residual = torch.randn(200, num_inputs).to(dtype), torch.randn(200, 700).to(dtype)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            together, added = linear(rows), linear.add_to(residual, rows)
            for size in (1, 2, 3, 7, 16, 33, 64, 150):
                part = slice(40, 40 + size)
                assert torch.equal(linear(rows[part]), together[part])
                assert torch.equal(linear.add_to(residual[part], rows[part]), added[part])
    finally:
        torch.set_num_threads(threads_before)


@dtypes
@pytest.mark.parametrize(
    "gate", [Gate("silu"), Gate("gelu_tanh"), Gate("clamped_swiglu", 7.0, 1.7)], ids=str
)
@pytest.mark.parametrize("num_outputs", [16, 35])
def test_gates_are_applied_to_the_products(
    dtype: torch.dtype, gate: Gate, num_outputs: int
) -> None:
    weight, bias = make_weight(dtype, 2 * num_outputs) / 8, torch.randn(2 * num_outputs).to(dtype)
    linear = make_gated_linear(weight, bias, gate)
    activate = make_gated_activation(gate, torch.device("cpu"))
    inputs = torch.randn(29, 120).to(dtype)
    with torch.inference_mode():
        expected = activate(inputs.float() @ weight.float().t() + bias.float())
        output = linear(inputs)
        alone = torch.cat([linear(row.unsqueeze(0)) for row in inputs])
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, rtol=0.01, atol=TOLERANCES[dtype] / 4)
    assert torch.equal(alone, output)


def test_types_that_cannot_be_packed_are_multiplied_all_the_same() -> None:
    weight = torch.randn(4, 6, dtype=torch.float64)
    linear = make_linear(weight)
    assert isinstance(linear, PlainLinear)
    inputs = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(linear(inputs), inputs @ weight.t())
