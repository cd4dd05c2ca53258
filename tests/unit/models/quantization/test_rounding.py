"""Dense weights become codes that are the nearest of their range, the same ones wherever they are computed."""

from __future__ import annotations

from hashlib import blake2b

import pytest
import torch
from torch.nn import functional

from pagemesh.kernels.linear.packed import GroupInt, ScaledFp8, unpack_halves
from pagemesh.models.quantization import rounding
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.ways import Rounding

INT4 = Rounding("int4", 32)
INT8 = Rounding("int8", 128)
FP8 = Rounding("fp8", 32)
ALL = pytest.mark.parametrize("to", [FP8, INT8, INT4], ids=lambda to: to.kind)


def draw(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative_error(weight: torch.Tensor, to: Rounding) -> float:
    difference = round_weight(weight, to, torch.float32).dense() - weight
    return float(difference.norm() / weight.norm())


@pytest.mark.parametrize("num_inputs", [256, 300, 20])
def test_a_group_of_fp8_has_the_best_of_eight_scales(num_inputs: int) -> None:
    weight = draw(6, num_inputs)
    rounded = round_weight(weight, FP8, torch.float32)
    assert isinstance(rounded, ScaledFp8)
    assert (rounded.shape, rounded.dtype, rounded.group_size) == (weight.shape, torch.float32, 32)
    assert rounded.scales.dtype == torch.bfloat16
    padded = functional.pad(weight, (0, -num_inputs % 32)).view(6, -1, 32)
    least = padded.abs().amax(2) / 448
    tried = torch.stack([least * 2 ** (step / 8) for step in range(8)]).bfloat16().float()
    errors = []
    for scales in tried.unsqueeze(3):
        nearest = (padded / scales).to(torch.float8_e4m3fn).float() * scales
        errors.append(((nearest - padded) ** 2).sum(2))
    best = torch.stack(errors).amin(0)
    found = functional.pad(rounded.dense(), (0, -num_inputs % 32)).view(6, -1, 32)
    torch.testing.assert_close(((found - padded) ** 2).sum(2), best)
    assert bool((rounded.scales == tried).any(0).all())
    assert bool((best < 0.9 * errors[0]).float().mean() > 0.5)


def test_codes_of_8_bits_are_the_nearest() -> None:
    weight = draw(5, 384)
    rounded = round_weight(weight, INT8, torch.float32)
    assert isinstance(rounded, GroupInt)
    assert (rounded.bits, rounded.centre, rounded.zero_points) == (8, 128, None)
    assert (rounded.codes.shape, rounded.scales.shape) == ((5, 384), (5, 3))
    assert rounded.scales.dtype == torch.bfloat16
    assert 1 <= int(rounded.codes.min()) < int(rounded.codes.max()) <= 255
    # A scale of 8 bits may be too small for the largest number, by a quarter of a step.
    steps = rounded.scales.float().repeat_interleave(128, 1)
    assert bool(((rounded.dense() - weight).abs() <= steps * 0.5001).all())


def test_codes_of_4_bits_are_the_nearest_of_their_range() -> None:
    weight = draw(40, 256)
    rounded = round_weight(weight, INT4, torch.float32)
    assert isinstance(rounded, GroupInt)
    assert (rounded.bits, rounded.group_size, rounded.zero_points) == (4, 32, None)
    assert rounded.minimums is not None
    assert rounded.scales.shape == rounded.minimums.shape == (40, 8)
    assert rounded.scales.dtype == rounded.minimums.dtype == torch.bfloat16
    groups = weight.view(40, 8, 32, 1)
    scales, minimums = (t.float().view(40, 8, 1, 1) for t in (rounded.scales, rounded.minimums))
    values = torch.arange(16) * scales - minimums
    nearest = (values - groups).abs().amin(-1)
    found = (rounded.dense().view(40, 8, 32) - groups.squeeze(-1)).abs()
    assert bool((found <= nearest + 1e-6).all())


def test_a_range_of_4_bits_is_cut_where_the_error_is_less() -> None:
    weight = draw(64, 512)
    groups = weight.view(-1, 32)
    least, largest = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = (largest - least) / 15
    whole = ((groups - least) / scale).round() * scale + least
    plain = float((whole - groups).norm() / groups.norm())
    assert relative_error(weight, INT4) < 0.94 * plain


@pytest.mark.parametrize(
    ("to", "least", "most"), [(FP8, 0.0195, 0.0215), (INT8, 0.0063, 0.0068), (INT4, 0.072, 0.074)]
)
def test_errors_of_normally_distributed_weights(to: Rounding, least: float, most: float) -> None:
    assert least < relative_error(draw(128, 256), to) < most


@ALL
def test_groups_of_one_number_keep_it(to: Rounding) -> None:
    weight = torch.zeros(3, 256)
    weight[1] = 0.75
    weight[2] = -3.0
    # The largest code of 8 bits, 127 or 448, times a scale of 8 bits.
    close = 0.0 if to == INT4 else 2.0**-8
    rounded = round_weight(weight, to, torch.float32).dense()
    torch.testing.assert_close(rounded, weight, rtol=close, atol=0.0)


@ALL
def test_matrices_of_a_stack_are_rounded_by_themselves(to: Rounding) -> None:
    stack = draw(3, 256, 40).transpose(1, 2)
    rounded = round_weight(stack, to, torch.bfloat16)
    assert rounded.shape == (3, 40, 256)
    for number, matrix in enumerate(stack):
        alone = round_weight(matrix.contiguous(), to, torch.bfloat16)
        assert torch.equal(rounded.matrix(number).dense(), alone.dense())


@ALL
def test_pieces_and_threads_change_nothing(to: Rounding, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = draw(300, 256).to(torch.float16)
    before = torch.get_num_threads()
    found = []
    try:
        for num_threads, piece in ((1, 1 << 18), (2, 1 << 18), (2, 1000)):
            torch.set_num_threads(num_threads)
            monkeypatch.setattr(rounding, "_PIECE_NUMBERS", piece)
            found.append(digest(weight, to))
    finally:
        torch.set_num_threads(before)
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("to", "expected"),
    [(FP8, "1a6b7ab7cd2567f3"), (INT8, "83325f714c8d120a"), (INT4, "8a775ec0be64e929")],
)
def test_codes_are_the_same_on_every_processor(to: Rounding, expected: str) -> None:
    """A change of these needs another version of the rule."""
    steps = torch.arange(64 * 256, dtype=torch.int64)
    weight = ((steps * 2654435761 % 65521).float() / 65521 - 0.5).view(64, 256)
    weight *= 1 + (steps % 7).float().view(64, 256)
    assert digest(weight, to) == expected


@ALL
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_seen_from_the_bound(to: Rounding, value: float) -> None:
    weight = draw(4, 256)
    assert bool(round_weight(weight, to, torch.bfloat16).bound().isfinite())
    weight[2, 100] = value
    assert not bool(round_weight(weight, to, torch.bfloat16).bound().isfinite())


def test_even_inputs_are_in_the_lower_half_of_a_byte() -> None:
    weight = torch.arange(32.0).remainder(16).view(1, 32)
    rounded = round_weight(weight, INT4, torch.float32)
    assert isinstance(rounded, GroupInt)
    assert unpack_halves(rounded.codes).tolist() == [[*range(16), *range(16)]]
    assert torch.equal(rounded.dense(), weight)


def digest(weight: torch.Tensor, to: Rounding) -> str:
    """Of all that is kept of it rounded."""
    rounded = round_weight(weight, to, torch.float32)
    found = blake2b(digest_size=8)
    for name in ("numbers", "codes", "scales", "minimums"):
        tensor = getattr(rounded, name, None)
        if tensor is not None:
            found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
