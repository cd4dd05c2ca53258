"""Matmuls with a weight in memory that processes share give the bits of one in memory of their own."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pagemesh.kernels.linear import Dense, Gate, make_gated_linear, make_linear
from pagemesh.kernels.packed_weights import packing_into, place_made, place_packed
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


@pytest.mark.parametrize("num_rows", [0, 1, 4000])
def test_a_weight_may_be_made_in_its_place(memory: int, num_rows: int) -> None:
    weight = torch.randn(num_rows, 20).bfloat16()

    def make() -> torch.Tensor:
        return place_made(weight.shape, weight.dtype, lambda place: place.copy_(weight))

    weights = SharedWeights(memory)
    with packing_into(weights.share):
        shared = [make(), make()]
    for placed in (*shared, make()):
        assert (placed.shape, placed.dtype) == (weight.shape, weight.dtype)
        assert torch.equal(placed, weight)
    is_worth_it = weight.nbytes > 1 << 16
    assert weights.added_bytes == weights.found_bytes == weight.nbytes * is_worth_it


@pytest.mark.parametrize("num_bytes", [5, 4096, 20 << 20], ids=["few", "a page", "many"])
def test_alone_a_weight_lies_in_huge_pages(num_bytes: int) -> None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("the system has no huge pages to ask for")
    weights = [torch.randint(256, (num_bytes,)).to(torch.uint8) for _ in range(3)]
    with packing_into(lambda _: None):
        placed = [place_packed(weights[0])]
    placed += [place_packed(weight) for weight in weights[1:]]
    for weight, place in zip(weights, placed, strict=True):
        assert torch.equal(place, weight)
        assert place.data_ptr() % mmap.PAGESIZE == 0
        assert "hg" in flags_of_memory(place.data_ptr())


def flags_of_memory(address: int) -> list[str]:
    """What the kernel says of the region with an address."""
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(each, 16) for each in match.groups())
            is_it = begin <= address < end
        elif is_it and line.startswith("VmFlags:"):
            return line.split()[1:]
    pytest.skip("the system does not say how memory is mapped")


def test_memory_is_given_back_with_the_last_weight_in_it() -> None:
    weights = [torch.ones(160 << 20, dtype=torch.uint8) for _ in range(2)]
    placed = place_packed(weights[0])
    address = placed.data_ptr()
    # Another region, from which the next weight is taken.
    others = place_packed(weights[1])
    assert is_mapped(address)
    del placed
    assert not is_mapped(address)
    assert torch.equal(others, weights[1])


def is_mapped(address: int) -> bool:
    """Whether there is memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    regions = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return any(begin <= address < end for begin, end in regions)
