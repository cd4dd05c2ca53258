from __future__ import annotations

import pytest
import torch

from pagemesh.kernels.write_kv import slot_rows, write_kv
from pagemesh.kernels.write_kv.reference import write_kv_reference


def test_rows_of_keys_and_values() -> None:
    assert slot_rows(torch.tensor([0, 9, 4]), num_slots=10).tolist() == [[0, 10], [9, 19], [4, 14]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 13])
def test_it_is_exactly_the_reference(dtype: torch.dtype, num_tokens: int) -> None:
    # As in a decoder, keys and values are the tail of a fused projection.
    fused = torch.randn(num_tokens, 3 + 2 * 2, 6).to(dtype)
    keys_values = fused[:, 3:].view(-1, 2, 2, 6)
    slots = torch.randperm(7 * 5)[:num_tokens]
    expected = torch.randn(2, 7, 5, 2, 6).to(dtype)
    layer_kv = expected.clone()
    write_kv_reference(expected, keys_values, slots)
    write_kv(layer_kv, keys_values, slot_rows(slots, 35))
    assert torch.equal(layer_kv, expected)


def test_a_token_lands_in_its_slot() -> None:
    layer_kv = torch.zeros(2, 3, 4, 1, 2)
    write_kv(
        layer_kv, torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]]), slot_rows(torch.tensor([6]), 12)
    )
    assert layer_kv[0, 1, 2, 0].tolist() == [1.0, 2.0]
    assert layer_kv[1, 1, 2, 0].tolist() == [3.0, 4.0]
    assert int(layer_kv.count_nonzero()) == 4


@pytest.mark.parametrize(
    "keys_values", [torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 2, dtype=torch.bfloat16)]
)
def test_another_shape_or_type_is_refused(keys_values: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="cannot store"):
        write_kv(torch.zeros(2, 3, 4, 1, 2), keys_values, slot_rows(torch.tensor([6]), 12))


def test_a_slot_out_of_range_is_refused() -> None:
    with pytest.raises(IndexError):
        write_kv(
            torch.zeros(2, 3, 4, 1, 2), torch.ones(1, 2, 1, 2), slot_rows(torch.tensor([12]), 12)
        )
