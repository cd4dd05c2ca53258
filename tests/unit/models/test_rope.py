from __future__ import annotations

import cmath
import math

import pytest
import torch

from pagemesh.models.rope import pair_rows, rotate, rotation_table
from pagemesh.models.spec import RopeSpec


def angle(table: torch.Tensor, position: int, frequency: int) -> float:
    return cmath.phase(table[position, frequency].item())


def test_frequencies_are_a_geometric_series() -> None:
    table = rotation_table(RopeSpec(theta=100.0), head_dim=4, max_position=3)
    assert table.shape == (3, 2)
    assert angle(table, 2, 0) == pytest.approx(2.0)
    assert angle(table, 2, 1) == pytest.approx(0.2)


def test_linear_scaling_stretches_every_wavelength() -> None:
    table = rotation_table(RopeSpec(theta=100.0, kind="linear", factor=4.0), 4, 3)
    assert angle(table, 2, 0) == pytest.approx(0.5)
    assert angle(table, 2, 1) == pytest.approx(0.05)


def test_llama3_scaling_keeps_short_and_stretches_long_wavelengths() -> None:
    # Wavelengths 2π, 20π, 200π, 2000π against an original context of 400: kept below 400 / 4,
    # stretched by the whole factor above 400 / 1.
    rope = RopeSpec(1e4, "llama3", 8.0, 1.0, 4.0, original_max_position=400)
    table = rotation_table(rope, head_dim=8, max_position=2)
    assert angle(table, 1, 0) == pytest.approx(1.0)
    assert angle(table, 1, 1) == pytest.approx(0.1)
    assert angle(table, 1, 2) == pytest.approx(0.01 / 8)
    assert angle(table, 1, 3) == pytest.approx(0.001 / 8)


def test_llama3_scaling_interpolates_between() -> None:
    # The second wavelength is 2π · 40 = 251.3; 400 / 251.3 = 1.5915, a share of 0.19718 kept.
    rope = RopeSpec(1600.0, "llama3", 8.0, 1.0, 4.0, original_max_position=400)
    table = rotation_table(rope, head_dim=4, max_position=2)
    assert angle(table, 1, 1) == pytest.approx((0.19718 + 0.80282 / 8) / 40, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_of_paired_rows_equals_rotation_of_halves(dtype: torch.dtype) -> None:
    num_heads, head_dim = 3, 6
    rows = torch.randn(num_heads * head_dim, dtype=dtype)
    table = rotation_table(RopeSpec(theta=10.0), head_dim, max_position=6)

    paired = pair_rows(rows, num_heads).view(1, num_heads, head_dim).clone()
    rotate(paired, table[5:6].unsqueeze(1))

    first, second = rows.float().view(num_heads, head_dim).chunk(2, dim=-1)
    angles = torch.tensor([5.0 / 10 ** (i / 3) for i in range(3)])
    turned = torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ],
        dim=-1,
    )
    expected = pair_rows(turned.flatten(), num_heads).view(1, num_heads, head_dim).to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2  # bfloat16 keeps 8 bits
    torch.testing.assert_close(paired, expected, rtol=tolerance, atol=tolerance)


def test_rotation_leaves_other_heads_alone() -> None:
    heads = torch.randn(2, 3, 4)
    values = heads[:, 2].clone()
    table = rotation_table(RopeSpec(theta=10.0), 4, max_position=9)
    rotate(heads[:, :2], table[torch.tensor([3, 8])].unsqueeze(1))
    assert torch.equal(heads[:, 2], values)


def test_position_zero_does_not_turn() -> None:
    table = rotation_table(RopeSpec(theta=10.0), 4, max_position=1)
    assert table.tolist() == [[complex(1, 0), complex(1, 0)]]
    assert math.isclose(abs(table[0, 0]), 1.0)
