"""Weights in panels lie as their plain definition says, whichever rows become columns, on every class of processors."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas, using_isa
from pagemesh.kernels.linear.packed import pack_halves, unpack_halves
from pagemesh.kernels.linear.panel_packing import (
    CodeLines,
    TableRows,
    lift_bytes,
    pack_lines,
    pack_table,
    pair_nibbles,
    place_words,
)

isas = pytest.mark.parametrize("isa", processor_isas())

COLUMNS = torch.cat(
    [torch.randperm(70, generator=torch.Generator().manual_seed(1)), torch.zeros(26).long()]
)
"""Of 70 rows, and what fills three panels up."""


@isas
@pytest.mark.parametrize("num_words", [16, 48, 160])
def test_words_in_tiles_are_transposed_in_squares(isa: CpuIsa, num_words: int) -> None:
    rows = torch.randint(-(2**31), 2**31 - 1, (70, num_words), dtype=torch.int32)
    with using_isa(isa):
        placed = place_words(rows, COLUMNS, "tiles")
    squares = rows[COLUMNS].view(3, 2, 16, num_words // 16, 16)
    assert torch.equal(placed, squares.permute(0, 3, 1, 4, 2))


@isas
@pytest.mark.parametrize("num_words", [1, 15, 16, 37])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_words_in_lines_have_all_columns_side_by_side(
    isa: CpuIsa, dtype: torch.dtype, num_words: int
) -> None:
    rows = torch.randn(70, num_words * 4 // dtype.itemsize).to(dtype)
    with using_isa(isa):
        # Rows that lie apart are brought together.
        placed = place_words(torch.cat([rows, rows], 1)[:, : rows.shape[1]], COLUMNS, "lines")
    words = rows.view(torch.int32)[COLUMNS].view(3, 32, num_words)
    assert torch.equal(placed, words.transpose(1, 2))


@isas
@pytest.mark.parametrize("num_lines", [1, 2, 4, 5, 7])
@pytest.mark.parametrize(("bits", "turns_codes"), [(4, False), (4, True), (8, False)])
def test_lines_of_codes_lie_column_by_column(
    isa: CpuIsa, bits: Literal[4, 8], turns_codes: bool, num_lines: int
) -> None:
    part_lines, offset = bits // 2, 64
    codes = torch.randint(0, 256, (70, 32 * num_lines), dtype=torch.uint8)
    num_parts = -(-num_lines // part_lines)
    size = num_parts * offset + 32 * codes.shape[1]
    place = torch.full((3, size), 7, dtype=torch.uint8)
    with using_isa(isa):
        pack_lines(codes, COLUMNS, CodeLines(bits, offset, part_lines, turns_codes), place)
    lines = codes
    if bits == 4:
        inputs = unpack_halves(codes).view(70, -1, 2, 32)
        lines = (inputs[:, :, 0] | inputs[:, :, 1] << 4).flatten(1)
    if turns_codes:
        lines = lines << 1 | lines >> 7
    expected = []
    for part in torch.split(lines[COLUMNS].view(3, 32, -1), 32 * part_lines, 2):
        expected += [torch.full((3, offset), 7, dtype=torch.uint8), part.flatten(1)]
    assert torch.equal(place, torch.cat(expected, 1))


@isas
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize(
    ("num_runs", "number", "parts_per_number"),
    [(12, 4, 0), (10, 4, 0), (3, 1, 1), (2, 1, 2), (1, 1, 1), (5, 2, 0)],
)
def test_rows_of_a_table_lie_at_the_begin_of_each_part(
    isa: CpuIsa, dtype: torch.dtype, num_runs: int, number: int, parts_per_number: int
) -> None:
    table = torch.randint(0, 100, (70, num_runs)).to(dtype)
    row_bytes = 32 * dtype.itemsize
    gap = -number * row_bytes % 64
    part_bytes = 64 + number * row_bytes + gap + 32
    place = torch.full((3, 3 * part_bytes), 7, dtype=torch.uint8)
    with using_isa(isa):
        rows = TableRows(64, number, parts_per_number, gap, part_bytes, 3)
        pack_table(table, COLUMNS, rows, place)
    filled = torch.cat([table, torch.zeros(70, 12, dtype=dtype)], 1)[COLUMNS].view(3, 32, -1)
    for part, own in enumerate(place.view(3, 3, part_bytes).unbind(1)):
        runs = [part * number + index for index in range(number)]
        if number == 1:
            runs = [min(part // parts_per_number, num_runs - 1)]
        there = filled[:, :, runs].transpose(1, 2).contiguous().view(torch.uint8).flatten(1)
        end = 64 + number * row_bytes
        assert torch.equal(own[:, 64:end], there)
        assert (own[:, end : end + gap] == 0).all()
        assert (own[:, :64] == 7).all() and (own[:, end + gap :] == 7).all()


@isas
@pytest.mark.parametrize(("size", "group"), [(16, 16), (128, 32)])
@pytest.mark.parametrize("num_blocks", [1, 255, 300])
def test_nibbles_are_paired(isa: CpuIsa, size: int, group: int, num_blocks: int) -> None:
    packed = torch.randint(0, 256, (num_blocks, size + 2), dtype=torch.uint8)[:, 2:]
    with using_isa(isa):
        paired = pair_nibbles(packed, group)
    groups = packed.reshape(num_blocks, -1, 1, group)
    codes = torch.cat([groups & 15, groups >> 4], 2).flatten(1)
    assert torch.equal(paired, pack_halves(codes))


@isas
@pytest.mark.parametrize("num_blocks", [1, 255, 300])
def test_signed_bytes_become_codes(isa: CpuIsa, num_blocks: int) -> None:
    signed = torch.randint(-128, 128, (num_blocks, 34), dtype=torch.int8)[:, 2:]
    with using_isa(isa):
        codes = lift_bytes(signed.view(torch.uint8))
    assert codes.is_contiguous()
    assert torch.equal(codes.int(), signed.int() + 128)
