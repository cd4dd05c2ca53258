"""Rows of tables by kernels, against what their definitions make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch

from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas, using_isa
from pagemesh.kernels.jit.program import Program
from pagemesh.kernels.jit.recording import ResultMemory, recording
from pagemesh.kernels.linear import make_lookup
from pagemesh.kernels.linear.packed import Codebook, GroupInt
from pagemesh.kernels.linear.table_lookup import make_cpu_lookup
from pagemesh.kernels.linear.weight import Dense, Quantised
from tests.unit.kernels.quantised import int4_act_order, random_codes

NUM_ROWS = 37
NUM_INPUTS = 160


def numbers(groups: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(NUM_ROWS, groups).to(dtype)


def whole(groups: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 100, (NUM_ROWS, groups)).to(dtype)


def plain(bits: int, group_size: int, dtype: torch.dtype) -> GroupInt:
    """As of Q4_0 and Q8_0, and of `--quantization int8`."""
    codes = random_codes((NUM_ROWS, NUM_INPUTS), bits)
    scales = numbers(NUM_INPUTS // group_size, torch.float16)
    return GroupInt(dtype, codes, scales, 8 if bits == 8 else 4, group_size, 1 << (bits - 1))


def with_zero_points(dtype: torch.dtype) -> GroupInt:
    codes = random_codes((NUM_ROWS, NUM_INPUTS), 4)
    zeros = torch.randint(0, 16, (NUM_ROWS, 5), dtype=torch.uint8)
    return GroupInt(dtype, codes, numbers(5, torch.float32), 4, 32, zero_points=zeros)


def with_units(dtype: torch.dtype) -> GroupInt:
    """As of Q4_K and Q2_K: scales and minimums are whole numbers times units that several share."""
    return GroupInt(
        dtype,
        random_codes((NUM_ROWS, NUM_INPUTS), 4),
        whole(10, torch.int8) - 50,
        4,
        16,
        minimums=whole(10, torch.uint8),
        scale_units=numbers(2, torch.float16),
        minimum_units=numbers(5, torch.bfloat16),
    )


def from_a_table(dtype: torch.dtype) -> Codebook:
    codes = random_codes((NUM_ROWS, NUM_INPUTS), 4)
    table = tuple(torch.randn(16).tolist())
    return Codebook(dtype, codes, numbers(5, torch.bfloat16), table, 32)


KINDS: Final[dict[str, Callable[[torch.dtype], Quantised]]] = {
    "q4_0": lambda dtype: plain(4, 32, dtype),
    "q8_0": lambda dtype: plain(8, 32, dtype),
    "wide": lambda dtype: plain(8, NUM_INPUTS, dtype),
    "zero_points": with_zero_points,
    "units": with_units,
    "table": from_a_table,
}


@pytest.mark.parametrize("isa", processor_isas())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_has_the_bits_of_the_definition(
    kind: str, dtype: torch.dtype, isa: CpuIsa
) -> None:
    torch.manual_seed(1)
    table = KINDS[kind](dtype)
    with using_isa(isa):
        look_up = make_lookup(table)
        assert look_up != table.rows
        for wanted in ([3], [0, 36, 3, 3], list(range(NUM_ROWS)) * 9):
            # As a step's token ids lie, which are a column of three.
            token_ids = torch.tensor([[number, 0] for number in wanted])[:, 0]
            found = look_up(token_ids)
            assert found.dtype == dtype
            assert torch.equal(found, table.rows(token_ids))


@pytest.mark.parametrize("isa", processor_isas())
@pytest.mark.parametrize("width", [1, 7, 16, 96])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.int8], ids=str)
def test_dense_rows_are_copied(dtype: torch.dtype, width: int, isa: CpuIsa) -> None:
    tables = [(torch.randn(NUM_ROWS, size) * 9).to(dtype) for size in (width, width + 3)]
    token_ids = torch.tensor([3, 36, 0, 3] * 99)
    for table in (tables[0], tables[1][:, 2 : width + 2]):
        with using_isa(isa):
            found = make_lookup(Dense(table))(token_ids)
        assert found.is_contiguous()
        assert torch.equal(found, table[token_ids])


@pytest.mark.parametrize("number", [-1, NUM_ROWS, 2**40])
def test_rows_that_there_are_not_are_refused(number: int) -> None:
    """Of a kernel that is run again with other numbers, they are no numbers: its memory ends there."""
    for table in (Dense(torch.randn(NUM_ROWS, 33)), plain(4, 32, torch.float32)):
        look_up = make_lookup(table)
        with pytest.raises(IndexError, match=f"all among {NUM_ROWS}"):
            look_up(torch.tensor([0, number]))
        token_ids = torch.tensor([5, 3])
        with torch.inference_mode(), recording(ResultMemory()) as recorded:
            found = look_up(token_ids)
        expected = table.rows(token_ids)
        token_ids[0] = number
        Program(recorded.calls).run()
        assert found[0].isnan().all()
        assert torch.equal(found[1], expected[1])


def test_what_it_does_not_know_is_left_to_the_definition() -> None:
    dtype = torch.bfloat16
    powers = torch.full((NUM_ROWS, 5), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    codes = random_codes((NUM_ROWS, NUM_INPUTS), 4)
    tables: list[Quantised] = [
        int4_act_order((6, 32), dtype),
        Codebook(dtype, codes, powers, tuple(map(float, range(16))), 32),
        plain(4, 8, dtype),
    ]
    for table in tables:
        assert make_cpu_lookup(table) == table.rows
