"""Matmuls with a weight in memory that processes share give the bits of one in memory of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear
from pagemesh.kernels.packed_weights import packing_into, place_packed
from pagemesh.loading.shared_weights import SharedWeights, weight_memory

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
IN, OUT = 300, 416
"""At least 64 KiB in any type; a width that fills neither a panel of pairs nor a tile."""


@pytest.fixture
def memory() -> Iterator[int]:
    with weight_memory() as descriptor:
        yield descriptor


def random_weight(dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(OUT, IN, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_with_a_shared_weight_have_the_same_bits(memory: int, dtype: torch.dtype) -> None:
    weight, bias = random_weight(dtype), torch.randn(OUT).to(dtype)
    rows = torch.randn(5, IN).to(dtype)
    gate = Gate("silu")
    plain, gated = make_linear(Dense(weight), bias), make_gated_linear(Dense(weight), None, gate)
    for is_first in (True, False):
        weights = SharedWeights(memory)
        with packing_into(weights.share):
            shared, shared_gated = (
                make_linear(Dense(weight), bias),
                make_gated_linear(Dense(weight), None, gate),
            )
        assert torch.equal(shared(rows), plain(rows))
        assert torch.equal(shared_gated(rows), gated(rows))
        num_bytes = weights.added_bytes if is_first else weights.found_bytes
        assert num_bytes >= 2 * weight.nbytes
        assert weights.added_bytes + weights.found_bytes == num_bytes


def test_a_tensor_has_its_shape_type_and_values_there(memory: int) -> None:
    weight = random_weight(torch.bfloat16)
    with packing_into(SharedWeights(memory).share):
        shared = place_packed(weight)
    assert shared.data_ptr() != weight.data_ptr()
    assert (shared.shape, shared.dtype) == (weight.shape, weight.dtype)
    assert torch.equal(shared, weight)


def test_alone_a_weight_stays_where_it_is() -> None:
    weight = random_weight(torch.float32)
    assert place_packed(weight) is weight
    with packing_into(lambda _: None):
        assert place_packed(weight) is weight
