"""Rows as kernels take them are the same numbers in another place."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from pagemesh.kernels.linear.prepared_rows import paired, widen, with_zeros
from tests.support.cpu_isas import isas


def rows_of(num_rows: int, size: int) -> torch.Tensor:
    """Of a wider tensor: a row begins an odd number of elements behind the last one."""
    torch.manual_seed(num_rows)
    return torch.randn(num_rows, size + 3).bfloat16()[:, 1 : size + 1]


@isas
@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 40])
def test_pairs_lie_by_tiles_of_16_rows(isa: CpuIsa, num_rows: int) -> None:
    rows = rows_of(num_rows, 96)
    tiles = [
        rows[first : first + 16].reshape(-1, 48, 2).transpose(0, 1).flatten()
        for first in range(0, num_rows, 16)
    ]
    with using_isa(isa):
        assert torch.equal(paired(rows).flatten(), torch.cat(tiles))


@isas
def test_rows_are_filled_up_and_widened(isa: CpuIsa) -> None:
    rows = rows_of(7, 45)
    with using_isa(isa):
        assert torch.equal(with_zeros(rows, 19), functional.pad(rows, (0, 19)))
        assert torch.equal(widen(rows), rows.float())
