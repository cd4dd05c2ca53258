"""Norms, gated activations and turns: each row is what the definition says, whatever lies beside it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.gated_activation.interface import ReferenceGatedActivation
from pagemesh.kernels.rms_norm import make_rms_norm
from pagemesh.kernels.rms_norm.interface import ReferenceRmsNorm
from pagemesh.kernels.write_kv import Turn, make_kv_writer
from pagemesh.kernels.write_kv.cpu import CpuKvWriter
from tests.unit.kernels.turning import turned

# Both round once; they round the same number when they add in the same order.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
GATES = {
    "silu": Gate("silu"),
    "geglu": Gate("geglu"),
    "gelu_tanh": Gate("gelu_tanh"),
    "clamped_swiglu": Gate("clamped_swiglu", limit=1.5, alpha=1.7),
}

dtypes = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return (3 * torch.randn(*shape, generator=generator)).to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def same_alone(function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> None:
    """Every row gives the same bits alone, in small groups and with all others, on all threads."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = function(rows)
        for size in (1, 3, 100):
            for begin in range(0, len(rows), size):
                part = slice(begin, begin + size)
                assert torch.equal(function(rows[part]), together[part])
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.product(sample=20)
@dtypes
@pytest.mark.parametrize("size", [1, 16, 24, 131])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm_is_its_definition(
    device: torch.device, dtype: torch.dtype, size: int, eps: float
) -> None:
    rows, weight = random(7, 2 * size, dtype=dtype)[:, :size], random(size)
    expected = ReferenceRmsNorm(weight, eps)(rows)
    assert_close(make_rms_norm(weight.to(device), eps)(rows.to(device)).cpu(), expected)


@dtypes
@pytest.mark.parametrize("size", [16, 131])
def test_rms_norm_adds_to_a_residual(device: torch.device, dtype: torch.dtype, size: int) -> None:
    rows, residual, weight = (
        random(5, size, dtype=dtype),
        random(5, 2 * size, dtype=dtype),
        random(size),
    )
    residual = residual[:, size:]
    before = residual.clone()
    expected = ReferenceRmsNorm(weight, 1e-5).add_to(residual, rows)
    actual = make_rms_norm(weight.to(device), 1e-5).add_to(residual.to(device), rows.to(device))
    assert_close(actual.cpu(), expected)
    assert torch.equal(residual, before)


def test_rms_norm_by_hand(device: torch.device) -> None:
    # Mean square of 3 and 4 is 12.5; with eps 3.5 the root is 4.
    norm = make_rms_norm(torch.tensor([1.0, 2.0], device=device), 3.5)
    rows = torch.tensor([[3.0, 4.0]], device=device)
    assert norm(rows).tolist() == [[0.75, 2.0]]
    assert norm.add_to(torch.tensor([[1.0, 10.0]], device=device), rows).tolist() == [[1.75, 12.0]]


def test_rms_norm_refuses_rows_of_another_size(device: torch.device) -> None:
    norm = make_rms_norm(torch.ones(8, device=device), 1e-6)
    with pytest.raises(ValueError, match=r"rows \[2, 9\] on .* do not fit the weight \[8\]"):
        norm(torch.ones(2, 9, device=device))


@pytest.mark.product(sample=30)
@dtypes
@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("size", [1, 16, 37])
def test_gated_activations_are_their_definitions(
    device: torch.device, dtype: torch.dtype, gate: Gate, size: int
) -> None:
    gate_up = random(5, 2 * size, dtype=dtype)
    expected = ReferenceGatedActivation(gate)(gate_up)
    assert_close(make_gated_activation(gate, device)(gate_up.to(device)).cpu(), expected)


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_gates_far_out_give_what_they_tend_to(device: torch.device, gate: Gate) -> None:
    gate_up = torch.tensor([[-300.0, 300.0, math.inf, math.nan, 1.0, 1.0, 1.0, 1.0]])
    expected = ReferenceGatedActivation(gate)(gate_up)
    output = make_gated_activation(gate, device)(gate_up.to(device)).cpu()
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-30, equal_nan=True)


def test_gates_without_ups_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"must be \[T, 2 · n\], not \[2, 9\]"):
        make_gated_activation(GATES["silu"], device)(torch.ones(2, 9, device=device))


@dtypes
def test_a_row_is_the_same_bits_in_any_company(device: torch.device, dtype: torch.dtype) -> None:
    # Threads share the rows on a CPU; in Triton each row has programs of its own, slow when interpreted.
    num_rows = 100 if isinstance(make_kv_writer(device), CpuKvWriter) else 4
    rows = random(num_rows, 1030, dtype=dtype).to(device)
    same_alone(make_rms_norm(random(1030).to(device), 1e-6), rows)
    for gate in GATES.values():
        same_alone(make_gated_activation(gate, device), rows)
    weight, factors = random(103, 10), torch.polar(torch.ones(5), random(5))

    def turn(rows: torch.Tensor) -> torch.Tensor:
        heads = rows.view(-1, 103, 10)
        step = Turn(factors.expand(len(heads), -1).contiguous(), weight, 1e-6)
        return turned(heads, step, rows.device)

    same_alone(turn, rows)


@dtypes
def test_rows_may_be_strided(device: torch.device, dtype: torch.dtype) -> None:
    wide = random(6, 90, dtype=dtype).to(device)
    part = wide[:, 10:50]
    norm = make_rms_norm(random(40).to(device), 1e-6)
    activate = make_gated_activation(GATES["silu"], device)
    for function in (norm, activate):
        assert torch.equal(function(part), function(part.contiguous()))
        columns = part.t().contiguous().t()
        assert torch.equal(function(columns), function(part.contiguous()))
