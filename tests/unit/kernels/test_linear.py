from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagemesh.kernels.arithmetic import arithmetic_of
from pagemesh.kernels.dispatch import using
from pagemesh.kernels.gated_activation.interface import ReferenceGatedActivation
from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from pagemesh.kernels.launch import is_interpreted
from pagemesh.kernels.linear import (
    Dense,
    Gate,
    GatedLinear,
    Linear,
    cuda_product,
    make_gated_linear,
    make_linear,
)
from pagemesh.kernels.linear.cpu import PanelLinear
from pagemesh.kernels.linear.cuda import CudaLinear
from pagemesh.kernels.linear.interface import PlainLinear
from pagemesh.kernels.linear.tiles import Tiles, choose_tiles, num_segments
from tests.support.cpu_isas import PLAYABLE_ISAS, isas

# Products of unit normals over 120 inputs: rounding of the type, times their typical size of 11.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.03}
Maker = Callable[[Any, torch.Tensor | None], Linear]

kinds = pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in (PlainLinear, PanelLinear, CudaLinear) for dtype in TOLERANCES],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)


def make_weight(dtype: torch.dtype, num_outputs: int = 70, num_inputs: int = 120) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(num_outputs, num_inputs).to(dtype)


def make(kind: Maker, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    device = device_of(kind)
    moved = weight.to(device)
    # Two of the three take weights of any kind.
    taken = moved if kind is PlainLinear else Dense(moved)
    return kind(taken, None if bias is None else bias.to(device))


def tolerance(kind: Maker, dtype: torch.dtype) -> float:
    """The interpreter cuts bfloat16 off where a GPU rounds."""
    is_cut = kind is CudaLinear and is_interpreted() and dtype == torch.bfloat16
    return TOLERANCES[dtype] * (2 if is_cut else 1)


def device_of(kind: Maker) -> torch.device:
    has_gpu = kind is CudaLinear and torch.cuda.is_available()
    return torch.device("cuda" if has_gpu else "cpu")


def exact(*shape: int, dtype: torch.dtype, num_zeros: int = 1) -> torch.Tensor:
    """Halves, and about `num_zeros` zeros to every two of them: sums of their products are exact in
    whatever order they are added, and need no rounding when they are stored."""
    return ((torch.randint(0, 2, shape) - 0.5) * (torch.rand(shape) * (2 + num_zeros) < 2)).to(
        dtype
    )


# torch says so on Arm without bfloat16, where it takes slower products of its own.
@pytest.mark.product(sample=24)
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
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
    inputs, residual = inputs.to(device_of(kind)), residual.to(device_of(kind))
    before = residual.clone()
    with torch.inference_mode():
        product, total = linear(inputs), linear.add_to(residual, inputs)
    assert torch.equal(residual, before)
    product, total, residual = product.cpu(), total.cpu(), residual.cpu()
    assert product.dtype == total.dtype == dtype
    atol = tolerance(kind, dtype)
    torch.testing.assert_close(product.double(), expected, rtol=0, atol=atol)
    torch.testing.assert_close(total.double(), expected + residual, rtol=0, atol=atol)


@kinds
def test_rows_may_be_strided(kind: Maker, dtype: torch.dtype) -> None:
    weight = make_weight(dtype)
    wide = torch.randn(5, 300).to(dtype)
    linear = make(kind, weight, None)
    expected = wide[:, 30:150].double() @ weight.double().t()
    with torch.inference_mode():
        product = linear(wide.to(device_of(kind))[:, 30:150]).double()
    torch.testing.assert_close(product.cpu(), expected, rtol=0, atol=tolerance(kind, dtype))


@pytest.mark.product(sample=6)
@kinds
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"),
    [
        pytest.param(70, 120, id="whole"),
        pytest.param(70, 640, id="in two segments"),
        pytest.param(1, 1024, id="one output"),
    ],
)
def test_exact_products_are_exact_in_any_company(
    kind: Maker, dtype: torch.dtype, num_outputs: int, num_inputs: int
) -> None:
    weight = exact(num_outputs, num_inputs, dtype=dtype, num_zeros=14)
    bias = exact(num_outputs, dtype=dtype)
    rows, residual = exact(67, num_inputs, dtype=dtype), exact(67, num_outputs, dtype=dtype)
    expected = rows.double() @ weight.double().t() + bias.double()
    linear = make(kind, weight, bias)
    for begin, end in ((0, 1), (3, 20), (0, 67)):
        part = rows[begin:end].to(device_of(kind))
        product = linear(part).cpu()
        total = linear.add_to(residual[begin:end].to(device_of(kind)), part).cpu()
        assert torch.equal(product.double(), expected[begin:end])
        assert torch.equal(total.double(), expected[begin:end] + residual[begin:end])


@pytest.mark.product(most=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("num_rows", [3, 70])
def test_segments_are_added_in_one_order_whoever_computes_them(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_rows: int
) -> None:
    weight, rows = make_weight(dtype, 70, 1100), torch.randn(num_rows, 1100).to(dtype)
    linear = make(CudaLinear, weight, None)
    gated = make_gated_on(device_of(CudaLinear), weight, Gate("silu"))
    assert num_segments(70, 1100) == 4
    outputs = []
    for is_split in (False, True):

        def choose(*args: Any, is_split: bool = is_split, **kwargs: Any) -> Tiles:
            return choose_tiles(*args, **kwargs)._replace(is_split=is_split)

        monkeypatch.setattr(cuda_product, "choose_tiles", choose)
        # Twice: counters must be as they were.
        for _ in range(2):
            part = rows.to(device_of(CudaLinear))
            outputs.append((linear(part), gated(part)))
    for product, activated in outputs[1:]:
        assert torch.equal(product, outputs[0][0])
        assert torch.equal(activated, outputs[0][1])


def make_gated_on(device: torch.device, weight: torch.Tensor, gate: Gate) -> GatedLinear:
    with using("cuda"):
        return make_gated_linear(Dense(weight.to(device)), None, gate)


@pytest.mark.parametrize(
    ("num_rows", "num_inputs"),
    [
        pytest.param(5, 120, id="a part of a block"),
        # Blocks of 16 inputs fill the row, a segment goes on to 128.
        pytest.param(70, 112, id="whole blocks"),
    ],
)
def test_nothing_beside_rows_and_outputs_is_read_or_written(num_rows: int, num_inputs: int) -> None:
    device = device_of(CudaLinear)
    around = torch.full((num_rows + 4, 300), math.nan, device=device)
    inputs, residual = around[2:-2, 30 : 30 + num_inputs], around[2:-2, 160:230]
    inputs.fill_(0.5)
    residual.fill_(1.0)
    before = around.clone()
    weight = torch.full((72, num_inputs), math.nan, device=device)
    weight[1:-1] = 1.0
    total = CudaLinear(Dense(weight[1:-1]), None).add_to(residual, inputs)
    assert torch.equal(total.cpu(), torch.full((num_rows, 70), 1 + num_inputs / 2))
    assert torch.equal(around.nan_to_num(), before.nan_to_num())


def test_no_rows_give_no_outputs() -> None:
    device = device_of(CudaLinear)
    linear = make(CudaLinear, torch.ones(70, 120), None)
    assert linear(torch.ones(0, 120, device=device)).shape == (0, 70)


def test_rows_that_do_not_fit_are_refused() -> None:
    device = device_of(CudaLinear)
    weight = torch.ones(70, 120, device=device)
    linear = CudaLinear(Dense(weight), None)
    with pytest.raises(
        ValueError, match=r"rows \[2, 119\] of .* do not fit the weight \[70, 120\]"
    ):
        linear(torch.ones(2, 119, device=device))
    rows = torch.ones(2, 120, device=device)
    with pytest.raises(ValueError, match=r"rows \[2, 120\] of torch.float16 .* torch.float32"):
        linear(rows.half())
    with pytest.raises(ValueError, match=r"the residual \[1, 70\] .* fit outputs \[2, 70\]"):
        linear.add_to(torch.ones(1, 70, device=device), rows)
    with pytest.raises(ValueError, match=r"the bias \[71\] .* the weight \[70, 120\]"):
        CudaLinear(Dense(weight), torch.ones(71, device=device))
    with pytest.raises(ValueError, match=r"\[2 · out, in\], not \[69, 120\]"):
        make_gated_on(device, weight[:69], Gate("silu"))
    with pytest.raises(ValueError, match=r"not \[70, 120\] of torch.float64"):
        CudaLinear(Dense(weight.double()), None)


@pytest.mark.product(sample=20)
@dtypes
@pytest.mark.parametrize("num_inputs", [72, 2048])
@pytest.mark.parametrize("num_threads", [1, 2])
@isas
def test_a_row_is_the_same_bits_in_any_company(
    isa: CpuIsa, dtype: torch.dtype, num_inputs: int, num_threads: int
) -> None:
    weight = make_weight(dtype, 700, num_inputs)
    with using_isa(isa):
        linear = make_linear(Dense(weight))
    rows = torch.randn(200, num_inputs).to(dtype)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            together = linear(rows)
            # What rounding to 8 bits hides is seen when they are taken away.
            residual = -together
            added = linear.add_to(residual, rows)
            for size in (1, 2, 3, 7, 16, 33, 64, 150):
                part = slice(40, 40 + size)
                assert torch.equal(linear(rows[part]), together[part])
                assert torch.equal(linear.add_to(residual[part], rows[part]), added[part])
    finally:
        torch.set_num_threads(threads_before)


@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "num_outputs"),
    [
        pytest.param(300, 4096, 140, id="rows that do not fit the cache"),
        pytest.param(300, 72, 1300, id="wide outputs"),
        pytest.param(70, 72, 170, id="few items for the threads"),
    ],
)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_tiles_give_each_row_and_column_once(
    num_rows: int, num_inputs: int, num_outputs: int, num_threads: int
) -> None:
    weight = exact(num_outputs, num_inputs, dtype=torch.bfloat16, num_zeros=num_inputs - 64)
    rows = exact(num_rows, num_inputs, dtype=torch.bfloat16)
    with using_isa(CpuIsa.AMX):
        linear = make_linear(Dense(weight))
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            product = linear(rows)
    finally:
        torch.set_num_threads(threads_before)
    assert torch.equal(product, (rows.double() @ weight.double().t()).bfloat16())


@dtypes
@pytest.mark.parametrize("num_rows", [1, 5, 40])
def test_processors_of_one_arithmetic_give_the_same_bits(dtype: torch.dtype, num_rows: int) -> None:
    weight, inputs = make_weight(dtype, 70, 121), torch.randn(num_rows, 121).to(dtype)
    outputs: dict[str, torch.Tensor] = {}
    for isa in PLAYABLE_ISAS:
        with using_isa(isa):
            name = arithmetic_of(weight.device, dtype)
            output = make_linear(Dense(weight))(inputs)
        assert torch.equal(output, outputs.setdefault(name, output)), (isa, name)


@pytest.mark.product(sample=12)
@dtypes
@pytest.mark.parametrize(
    "gate", [Gate("silu"), Gate("gelu_tanh"), Gate("clamped_swiglu", 7.0, 1.7)], ids=str
)
@pytest.mark.parametrize("num_outputs", [16, 35])
def test_gates_are_applied_to_the_products(
    device: torch.device, dtype: torch.dtype, gate: Gate, num_outputs: int
) -> None:
    weight = exact(2 * num_outputs, 120, dtype=dtype)
    bias = torch.randn(2 * num_outputs).to(dtype)
    linear = make_gated_linear(Dense(weight.to(device)), bias.to(device), gate)
    inputs = exact(29, 120, dtype=dtype)
    products = inputs.float() @ weight.float().t() + bias.float()
    expected = ReferenceGatedActivation(gate)(products)
    with torch.inference_mode():
        output = linear(inputs.to(device)).cpu()
        alone = torch.cat([linear(row.to(device)) for row in inputs[[3, 28]].chunk(2)]).cpu()
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, rtol=0.01, atol=TOLERANCES[dtype] / 4)
    assert torch.equal(alone, output[[3, 28]])


def test_types_without_a_kernel_are_multiplied_all_the_same() -> None:
    weight = torch.randn(4, 6, dtype=torch.float64)
    linear = make_linear(Dense(weight))
    assert isinstance(linear, PlainLinear)
    inputs = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(linear(inputs), inputs @ weight.t())
