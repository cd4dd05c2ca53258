"""On a GPU what is computed for a token has the same bits in any company, for shapes of real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from pagemesh.kernels.expert_choice import Choices, make_expert_choice
from pagemesh.kernels.expert_choice.interface import ReferenceExpertChoice
from pagemesh.kernels.experts import Stack, make_experts
from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.linear import (
    Dense,
    make_gated_linear,
    make_linear,
    make_normed_product,
)
from pagemesh.kernels.linear.cuda_weight import takes_codes
from pagemesh.kernels.linear.packed import ScaledFp8
from pagemesh.kernels.linear.rows_kernel import fp8_rows
from pagemesh.kernels.linear.weight import Weight
from pagemesh.kernels.rms_norm import make_rms_norm
from pagemesh.kernels.rms_norm.interface import UnscaledRows
from pagemesh.kernels.write_kv import Turn
from tests.support.random_weights import random_like
from tests.unit.kernels.turning import turned
from tools.kernel_cases.linear import WEIGHTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
MOST_TOKENS = 1100
# A token alone, tiles of 16, 32, 64 and 128 tokens, full ones and others, one tile and several.
PARTS = ((0, 1), (700, 701), (5, 21), (5, 22), (64, 128), (64, 129), (300, 428), (300, 812))
# Rounding of sums of a standard deviation of 1, and in float32 that of what is added up.
ERRORS = {torch.bfloat16: 0.03, torch.float16: 0.004, torch.float32: 1e-4}
Function = Callable[[torch.Tensor], torch.Tensor]

PROJECTIONS = {
    "Llama 3 8B queries, keys and values": (6144, 4096),
    "Llama 3 8B output": (4096, 4096),
    "Llama 3 8B down": (4096, 14336),
    "Llama 3 70B output": (8192, 8192),
    "Qwen 3 0.6B output": (1024, 2048),
    "GPT-OSS 20B router": (32, 2880),
    "a head of 32,000": (32000, 1024),
}
GATED = {"Llama 3 8B": (14336, 4096), "Qwen 3 0.6B": (3072, 1024)}
MIXTURES = {"of 8": (8, 2, 2048, 1024), "of 128": (128, 8, 1024, 768)}


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=CUDA).to(dtype)


def check(function: Function, rows: torch.Tensor) -> None:
    together = function(rows)
    assert together.isfinite().all()
    for begin, end in PARTS:
        assert torch.equal(function(rows[begin:end]), together[begin:end]), (begin, end)


@pytest.fixture(autouse=True)
def one_seed() -> Iterator[None]:
    torch.manual_seed(7)
    # As the engine does; graphs of either kind, alive together, share a state of torch's.
    with torch.inference_mode():
        yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("shape", PROJECTIONS.values(), ids=PROJECTIONS)
def test_products(shape: tuple[int, int], dtype: torch.dtype) -> None:
    num_inputs = shape[1]
    weight = random(*shape, dtype=dtype)
    linear = make_linear(Dense(weight))
    rows = random(MOST_TOKENS, num_inputs, dtype=dtype)
    check(linear, rows)
    expected = rows[:40].double() @ weight.double().t()
    errors = (linear(rows[:40]).double() - expected).abs() / num_inputs**0.5
    assert float(errors.max()) < ERRORS[dtype]


@pytest.mark.parametrize("kind", WEIGHTS)
def test_products_with_packed_weights(kind: str) -> None:
    weight = WEIGHTS[kind](4096, 4096).moved(lambda tensor: random_like(tensor, CUDA))
    rows = random(MOST_TOKENS, 4096)
    linear, gated = make_linear(weight), make_gated_linear(weight, None, Gate("silu"))
    for function in (linear, gated):
        check(function, rows)
    if isinstance(weight, ScaledFp8) and takes_codes(weight):
        # Rounding to bfloat16, and what tensor cores cut off of sums of 128 products.
        assert weight.row_group is not None
        run = weight.row_group if weight.row_group < 4096 else 0
        codes, scales = fp8_rows(rows, None, run)
        values = codes.double() * scales.t().double().repeat_interleave(weight.row_group, 1)
        numbers = replace(weight, dtype=torch.float64).dense()
        bound = 2.0**-8 * (values.abs() @ numbers.abs().t())
        assert ((linear(rows).double() - values @ numbers.t()).abs() <= bound).all()
    elif kind != "W8A8":
        dense = Dense(weight.dense())
        assert torch.equal(linear(rows), make_linear(dense)(rows))
        assert torch.equal(gated(rows), make_gated_linear(dense, None, Gate("silu"))(rows))


@pytest.mark.parametrize("shape", GATED.values(), ids=GATED)
def test_gated_products(shape: tuple[int, int]) -> None:
    num_outputs, num_inputs = shape
    check(
        make_gated_linear(Dense(random(2 * num_outputs, num_inputs) / 64), None, Gate("silu")),
        random(MOST_TOKENS, num_inputs),
    )


@pytest.mark.parametrize("shape", MIXTURES.values(), ids=MIXTURES)
def test_mixtures(shape: tuple[int, int, int, int]) -> None:
    num_experts, num_choices, hidden_size, size = shape
    experts = make_experts(
        Stack(Dense(random(num_experts, 2 * size, hidden_size) / 32), None),
        Stack(Dense(random(num_experts, hidden_size, size) / 32), None),
        Gate("silu"),
    )
    hidden = random(MOST_TOKENS, hidden_size)
    weights = torch.rand(MOST_TOKENS, num_choices, device=CUDA).bfloat16()
    chosen = torch.rand(MOST_TOKENS, num_experts, device=CUDA).argsort(1)[:, :num_choices]
    together = experts(hidden, Choices(weights, chosen))
    assert together.isfinite().all()
    for begin, end in PARTS:
        part = slice(begin, end)
        alone = experts(hidden[part], Choices(weights[part], chosen[part]))
        assert torch.equal(alone, together[part]), (begin, end)


@pytest.mark.parametrize("normalize", [True, False], ids=["of chosen", "of all"])
@pytest.mark.parametrize("shape", [(8, 2), (32, 4), (128, 8), (60, 4)], ids=str)
def test_choices_of_experts(shape: tuple[int, int], normalize: bool) -> None:
    num_experts, num_choices = shape
    choose = make_expert_choice(num_choices, CUDA, normalize=normalize)
    logits = random(MOST_TOKENS, num_experts)
    weights, experts, _ = choose(logits)
    expected = ReferenceExpertChoice(num_choices, normalize=normalize)(logits)
    assert torch.equal(experts, expected.experts)
    torch.testing.assert_close(weights, expected.weights, rtol=0.01, atol=0)
    for begin, end in (*PARTS, (0, 64)):
        alone = choose(logits[begin:end])
        assert torch.equal(alone.weights, weights[begin:end]), (begin, end)
        assert torch.equal(alone.experts, experts[begin:end]), (begin, end)
        if alone.by_expert is not None:
            order = alone.experts.flatten().argsort(stable=True)
            assert torch.equal(alone.by_expert.order.long(), order), (begin, end)


def test_norms_activations_and_turns() -> None:
    rows = random(MOST_TOKENS, 4096)
    check(make_rms_norm(random(4096, dtype=torch.float32), 1e-6), rows)
    check(make_gated_activation(Gate("gelu_tanh"), CUDA), rows)
    weight = random(32, 128, dtype=torch.float32)
    factors = torch.polar(torch.ones(64, device=CUDA), random(64, dtype=torch.float32))

    def turn(rows: torch.Tensor) -> torch.Tensor:
        heads = rows.view(-1, 32, 128)
        step = Turn(factors.expand(len(heads), -1).contiguous(), weight, 1e-6)
        return turned(heads, step, CUDA)

    check(turn, rows)


@pytest.mark.parametrize("kind", ["dense", "int4"])
@pytest.mark.parametrize("hidden_size", [4096, 8192, 2880], ids=str)
def test_products_behind_a_norm(hidden_size: int, kind: str) -> None:
    """Few rows are summed and left for the norm by the product in front, many by a kernel of their own."""
    before = make_linear(Dense(random(hidden_size, 4096) / 64))
    weight: Weight = Dense(random(2 * 1024, hidden_size) / 64)
    if kind == "int4":
        # Groups of 128, with which 2,880 does not end.
        shape = 2 * 1024, -(-hidden_size // 128) * 128
        weight = WEIGHTS["int4"](*shape).moved(lambda tensor: random_like(tensor, CUDA))
        before = make_linear(Dense(random(shape[1], 4096) / 64))
    norm = make_rms_norm(random(weight.shape[1], dtype=torch.float32), 1e-6)
    inputs, residual = random(MOST_TOKENS, 4096), random(MOST_TOKENS, weight.shape[1])
    for reader in (make_linear(weight), make_gated_linear(weight, None, Gate("silu"))):
        product = make_normed_product(norm, reader)
        hidden, normed = product.norm.of_sum(before, residual, inputs)
        together = product.multiply(normed)
        assert together.isfinite().all()
        assert torch.equal(hidden, before.add_to(residual, inputs))
        for begin, end in (*PARTS, (0, 64)):
            part = slice(begin, end)
            summed, left = product.norm.of_sum(before, residual[part], inputs[part])
            assert isinstance(left, UnscaledRows)
            assert torch.equal(summed, hidden[part]), (begin, end)
            assert torch.equal(product.multiply(left), together[part]), (begin, end)
            alone = product.norm(hidden[part])
            assert torch.equal(product.multiply(alone), together[part]), (begin, end)


def test_streams_may_multiply_with_one_weight_at_the_same_time() -> None:
    """Its inputs are cut, and the last of the programs to arrive adds up."""
    linear, rows = make_linear(Dense(random(4096, 4096))), random(3, 4096)
    expected = linear(rows)
    streams = [torch.cuda.Stream(CUDA) for _ in range(2)]  # type: ignore[no-untyped-call]
    products = []
    torch.cuda.synchronize()
    for _ in range(200):
        for stream in streams:
            with torch.cuda.stream(stream):
                products.append(linear(rows))
    torch.cuda.synchronize()
    assert all(torch.equal(product, expected) for product in products)


def test_a_graph_of_segments_and_experts_can_be_replayed() -> None:
    linear = make_linear(Dense(random(4096, 4096)))
    experts = make_experts(
        Stack(Dense(random(8, 2048, 4096) / 64), None),
        Stack(Dense(random(8, 4096, 1024) / 64), None),
        Gate("silu"),
    )
    hidden, weights = random(3, 4096) / 64, random(3, 2)
    chosen = torch.tensor([[0, 1], [5, 7], [1, 5]], device=CUDA)

    def compute() -> torch.Tensor:
        return experts.add_to(hidden, linear(hidden), Choices(weights, chosen))

    expected = compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compute()
    for _ in range(3):
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, expected)
    # Other choices of as many tokens, by the same graph.
    chosen.copy_(torch.tensor([[2, 3], [3, 2], [6, 0]], device=CUDA))
    expected = compute()
    graph.replay()
    assert torch.equal(captured, expected)
