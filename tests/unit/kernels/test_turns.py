"""Queries and keys are turned as the definition says, and keys are stored as they were turned."""

from __future__ import annotations

import pytest
import torch

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.write_kv import Turn, make_kv_writer
from pagemesh.kernels.write_kv.interface import ReferenceKvWriter
from tests.unit.kernels.test_row_kernels import assert_close, dtypes, random
from tests.unit.kernels.turning import turned, write_turned


@pytest.mark.product(sample=30)
@dtypes
@pytest.mark.parametrize("head_dim", [2, 6, 16, 24, 64, 258])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_turns_are_their_definition(
    device: torch.device, dtype: torch.dtype, head_dim: int, normed: bool
) -> None:
    # Three queries and two keys: of 258 a head, Triton's programs have two.
    heads = random(5, 3 + 2 * 2, head_dim, dtype=dtype)
    factors = torch.polar(torch.ones(5, head_dim // 2), random(5, head_dim // 2))
    turn = Turn(factors, random(5, head_dim) if normed else None, 1e-6)
    expected = write_turned(heads, 2, turn, writer=ReferenceKvWriter())
    written = write_turned(heads, 2, turn, device)
    assert_close(written.heads, expected.heads)
    assert not torch.equal(written.heads[:, :5], heads[:, :5])
    assert torch.equal(written.heads[:, 5:], heads[:, 5:])
    assert torch.equal(written.layer_kv[0, 0, 1:], written.heads[:, 3:5].flip(0))
    assert torch.equal(written.layer_kv[1, 0, 1:], heads[:, 5:].flip(0))
    assert not written.layer_kv[:, 0, 0].any()


def test_a_turn_leaves_what_it_does_not_turn(device: torch.device) -> None:
    # A factor of exactly 1 for every dimension but the first two of six.
    factors = torch.ones(2, 3, dtype=torch.complex64)
    factors[:, 0] = torch.tensor(1j)
    heads = random(2, 5, 6, dtype=torch.bfloat16)
    expected = heads.clone()
    expected[:, :, 0], expected[:, :, 1] = -heads[:, :, 1], heads[:, :, 0]
    assert torch.equal(turned(heads, Turn(factors), device), expected)


def test_what_cannot_be_turned_is_refused(device: torch.device) -> None:
    factors = torch.ones(2, 4, dtype=torch.complex64)
    heads = torch.ones(2, 4, 8)
    with pytest.raises(ValueError, match=r"\[2, 4, 8\] are not turned by factors \[1, 4\]"):
        write_turned(heads, 1, Turn(factors[:1]), device)
    with pytest.raises(ValueError, match=r"3 heads of 8 do not fit the norm's weight \[2, 8\]"):
        write_turned(heads, 1, Turn(factors, torch.ones(2, 8)), device)


def test_on_a_device_keys_are_stored_for_slots_of_the_layer_alone() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layer_kv = torch.zeros(2, 3, 4, 1, 2, device=device)
    heads = torch.ones(4, 3, 2, device=device)
    slots = torch.tensor([-1, 12, 1 << 40, 5], device=device)
    with using("cuda"):
        turn = Turn(torch.full((4, 1), 2 + 0j, dtype=torch.complex64, device=device))
        make_kv_writer(device).write(layer_kv, heads, slots, None, turn)
    assert layer_kv.cpu()[..., 0, 0].nonzero().tolist() == [[0, 1, 1], [1, 1, 1]]
    assert layer_kv.cpu()[:, 1, 1, 0, 0].tolist() == [2.0, 1.0]


def test_turned_keys_are_stored_in_eight_bits() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Halves and doubles are exact in FP8, which the interpreter rounds otherwise than a GPU.
    scales = KvScales(torch.tensor([0.5, 2.0]), torch.tensor([4.0, 0.25]))
    scales = KvScales(*(scale.to(device) for scale in scales))
    heads = torch.tensor([1.0, -2.0]).expand(1, 1 + 2 * 2, 2).contiguous().to(device)
    layer_kv = torch.zeros(2, 1, 4, 2, 2, dtype=FP8, device=device)
    with using("cuda"):
        turn = Turn(torch.full((1, 1), 1j, dtype=torch.complex64, device=device))
        slots = torch.tensor([2], device=device)
        make_kv_writer(device).write(layer_kv, heads, slots, scales, turn)
    stored = layer_kv.cpu().float()[:, 0]
    assert stored[0, 2].tolist() == [[4.0, 2.0], [1.0, 0.5]]
    assert stored[1, 2].tolist() == [[0.25, -0.5], [4.0, -8.0]]
    assert int(stored[:, [0, 1, 3]].count_nonzero()) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter rounds to FP8 otherwise")
def test_turned_keys_are_rounded_to_their_type_and_then_to_eight_bits() -> None:
    device = torch.device("cuda")
    heads = (50 * torch.randn(64, 5 + 2 * 2, 128)).bfloat16().to(device)
    scales = KvScales(*(torch.tensor([0.7, 1.3], device=device) for _ in range(2)))
    turn = Turn(torch.polar(torch.ones(64, 64), random(64, 64)).to(device))
    slots = torch.arange(64, device=device)
    layer_kv = torch.zeros(2, 4, 16, 2, 128, dtype=FP8, device=device)
    expected = torch.zeros_like(layer_kv)
    with using("cuda"):
        make_kv_writer(device).write(layer_kv, heads, slots, scales, turn)
    # Of heads that are turned already.
    ReferenceKvWriter().write(expected, heads, slots, scales)
    assert torch.equal(layer_kv.view(torch.uint8), expected.view(torch.uint8))
