from __future__ import annotations

import cmath
import math

import pytest
import torch

from pagemesh.kernels.write_kv import Turn
from pagemesh.models.rope import fix_rope, frequencies, pair_rows, rotation_table
from pagemesh.models.spec import RopeSpec
from tests.unit.kernels.turning import turned


def angle(table: torch.Tensor, position: int, frequency: int) -> float:
    return cmath.phase(table[position, frequency].item())


def test_frequencies_are_a_geometric_series() -> None:
    table = rotation_table(RopeSpec(100.0, 4), head_dim=4, max_position=3)
    assert table.shape == (3, 2)
    assert angle(table, 2, 0) == pytest.approx(2.0)
    assert angle(table, 2, 1) == pytest.approx(0.2)


def test_linear_scaling_stretches_every_wavelength() -> None:
    table = rotation_table(RopeSpec(100.0, 4, "linear", factor=4.0), 4, 3)
    assert angle(table, 2, 0) == pytest.approx(0.5)
    assert angle(table, 2, 1) == pytest.approx(0.05)


def test_llama3_scaling_keeps_short_and_stretches_long_wavelengths() -> None:
    # Wavelengths 2π, 20π, 200π, 2000π against an original context of 400: kept below 400 / 4,
    # stretched by the whole factor above 400 / 1.
    rope = RopeSpec(1e4, 8, "llama3", 8.0, 400, 1.0, 4.0)
    table = rotation_table(rope, head_dim=8, max_position=2)
    assert angle(table, 1, 0) == pytest.approx(1.0)
    assert angle(table, 1, 1) == pytest.approx(0.1)
    assert angle(table, 1, 2) == pytest.approx(0.01 / 8)
    assert angle(table, 1, 3) == pytest.approx(0.001 / 8)


def test_llama3_scaling_interpolates_between() -> None:
    # The second wavelength is 2π · 40 = 251.3; 400 / 251.3 = 1.5915, a share of 0.19718 kept.
    rope = RopeSpec(1600.0, 4, "llama3", 8.0, 400, 1.0, 4.0)
    table = rotation_table(rope, head_dim=4, max_position=2)
    assert angle(table, 1, 1) == pytest.approx((0.19718 + 0.80282 / 8) / 40, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_of_paired_rows_equals_rotation_of_halves(dtype: torch.dtype) -> None:
    num_heads, head_dim = 3, 6
    rows = torch.randn(num_heads * head_dim, dtype=dtype)
    table = rotation_table(RopeSpec(10.0, head_dim), head_dim, max_position=6)

    paired = pair_rows(rows, num_heads, head_dim).view(1, num_heads, head_dim)
    paired = turned(paired, Turn(table[5:6]))

    first, second = rows.float().view(num_heads, head_dim).chunk(2, dim=-1)
    angles = torch.tensor([5.0 / 10 ** (i / 3) for i in range(3)])
    halves = torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ],
        dim=-1,
    )
    expected = (
        pair_rows(halves.flatten(), num_heads, head_dim).view(1, num_heads, head_dim).to(dtype)
    )
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2  # bfloat16 keeps 8 bits
    torch.testing.assert_close(paired, expected, rtol=tolerance, atol=tolerance)


def test_position_zero_does_not_turn() -> None:
    table = rotation_table(RopeSpec(10.0, 4), 4, max_position=1)
    assert table.tolist() == [[complex(1, 0), complex(1, 0)]]
    assert math.isclose(abs(table[0, 0]), 1.0)


def test_a_part_of_each_head_may_be_left_alone() -> None:
    rows = torch.arange(12.0)
    assert pair_rows(rows, 2, rotary_dim=4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    heads = torch.randn(1, 2, 6)
    table = rotation_table(RopeSpec(10.0, 4), 6, max_position=9)
    assert torch.equal(turned(heads, Turn(table[8:]))[..., 4:], heads[..., 4:])


def test_yarn_keeps_what_turns_often_and_stretches_what_turns_seldom() -> None:
    # Frequencies 1, 0.1, 0.01, 0.001 turn 15.9, 1.59, 0.159, 0.0159 times in 100 tokens: dimension
    # 4 · lg(100 / 2π) = 4.8072 / 4 = 1.2018 turns once, dimension 0.2018 ten times.
    rope = RopeSpec(1e4, 8, "yarn", 8.0, 100, beta_fast=10.0, beta_slow=1.0, truncate=False)
    stretched = (1 - 0.2018) / (1.2018 - 0.2018)
    assert frequencies(rope).tolist() == pytest.approx(
        [1.0, 0.1 * (1 - stretched + stretched / 8), 0.01 / 8, 0.001 / 8], rel=1e-3
    )


def test_yarn_may_round_its_bounds_to_whole_dimensions() -> None:
    # From 0.2018 to 1.2018 becomes from 0 to 2: dimension 1 is half stretched.
    rope = RopeSpec(1e4, 8, "yarn", 8.0, 100, beta_fast=10.0, beta_slow=1.0)
    assert frequencies(rope).tolist() == pytest.approx(
        [1.0, 0.1 * (0.5 + 0.5 / 8), 0.01 / 8, 0.001 / 8], rel=1e-5
    )


LONGROPE = RopeSpec(
    100.0,
    4,
    "longrope",
    original_max_position=50,
    short_factors=(1.0, 2.0),
    long_factors=(3.0, 4.0),
    attention_factor=1.5,
)


@pytest.mark.parametrize(
    ("max_model_len", "expected"), [(50, [1.0, 0.1 / 2]), (51, [1 / 3, 0.1 / 4])]
)
def test_longrope_is_that_of_the_longest_context(max_model_len: int, expected: list[float]) -> None:
    assert frequencies(fix_rope(LONGROPE, max_model_len)).tolist() == pytest.approx(expected)


def test_an_attention_factor_lengthens_what_is_turned_and_nothing_else() -> None:
    table = rotation_table(fix_rope(LONGROPE, 50), head_dim=6, max_position=3)
    assert table.abs()[2].tolist() == pytest.approx([1.5, 1.5, 1.0])


def test_dynamic_scaling_starts_behind_the_original_context() -> None:
    rope = RopeSpec(100.0, 8, "dynamic", 2.0, original_max_position=50)
    assert fix_rope(rope, 50) == fix_rope(rope, 20) == RopeSpec(100.0, 8)
    # Twice the context: (2 · 2 - 1)^(8 / 6) = 4.3267.
    assert fix_rope(rope, 100).theta == pytest.approx(432.67, rel=1e-4)
    assert fix_rope(rope, 100).kind == "default"
