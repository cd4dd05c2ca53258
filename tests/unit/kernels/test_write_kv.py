from __future__ import annotations

import math

import pytest
import torch

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.write_kv import make_kv_writer
from pagemesh.kernels.write_kv.interface import ReferenceKvWriter

FP8_SCALES = KvScales(torch.tensor([0.5, 2.0]), torch.tensor([4.0, 0.25]))


def write(
    device: torch.device,
    layer_kv: torch.Tensor,
    heads: torch.Tensor,
    slots: torch.Tensor,
    scales: KvScales | None = None,
) -> torch.Tensor:
    """The layer afterwards, on the CPU."""
    writer, there = make_kv_writer(device), layer_kv.to(device)
    slot_mapping = writer.slot_mapping(slots.to(device), layer_kv.shape[1] * layer_kv.shape[2])
    if scales is not None:
        scales = KvScales(*(scale.to(device) for scale in scales))
    writer.write(there, heads.to(device), slot_mapping, scales)
    return there.cpu()


@pytest.mark.parametrize("slot", [-1, 15])
def test_the_host_refuses_slots_that_there_are_not(slot: int) -> None:
    layer_kv, heads = torch.zeros(2, 3, 5, 1, 2), torch.ones(2, 2, 2)
    with pytest.raises(IndexError):
        write(torch.device("cpu"), layer_kv, heads, torch.tensor([3, slot]))
    assert not layer_kv.any()


@pytest.mark.product(sample=16)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 13])
@pytest.mark.parametrize("num_heads", [0, 3])
def test_it_is_exactly_the_reference(
    device: torch.device, dtype: torch.dtype, num_tokens: int, num_heads: int
) -> None:
    # Without queries tokens are strided.
    heads = torch.randn(num_tokens, 3 + 2 * 2, 6).to(dtype)[:, 3 - num_heads :]
    slots = torch.randperm(7 * 5)[:num_tokens]
    layer_kv = torch.randn(2, 7, 5, 2, 6).to(dtype)
    expected = layer_kv.clone()
    ReferenceKvWriter().write(expected, heads, slots)
    assert torch.equal(write(device, layer_kv, heads, slots), expected)


def test_heads_of_many_programs(device: torch.device) -> None:
    heads = torch.randn(2, 5 + 2 * 3, 600)
    layer_kv = write(device, torch.zeros(2, 1, 3, 3, 600), heads, torch.tensor([2, 0]))
    assert torch.equal(layer_kv[0, 0, [2, 0]], heads[:, 5:8])
    assert torch.equal(layer_kv[1, 0, [2, 0]], heads[:, 8:])
    assert not layer_kv[:, 0, 1].any()


def test_a_token_lands_in_its_slot(device: torch.device) -> None:
    heads = torch.tensor([[[5.0, 6.0], [1.0, 2.0], [3.0, 4.0]]])
    layer_kv = write(device, torch.zeros(2, 3, 4, 1, 2), heads, torch.tensor([6]))
    assert layer_kv[0, 1, 2, 0].tolist() == [1.0, 2.0]
    assert layer_kv[1, 1, 2, 0].tolist() == [3.0, 4.0]
    assert int(layer_kv.count_nonzero()) == 4


@pytest.mark.parametrize(
    "heads",
    [torch.ones(1, 2, 3), torch.ones(1, 1, 2), torch.ones(1, 2, 2, dtype=torch.bfloat16)],
    ids=["head size", "one head", "type"],
)
def test_another_shape_or_type_is_refused(device: torch.device, heads: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"cannot store .* in torch\.float32 \[2, 3, 4, 1, 2\]"):
        write(device, torch.zeros(2, 3, 4, 1, 2), heads, torch.tensor([6]))


def test_as_many_slots_as_tokens(device: torch.device) -> None:
    with pytest.raises(ValueError, match="2 slots do not fit heads of 1 tokens"):
        write(device, torch.zeros(2, 3, 4, 1, 2), torch.ones(1, 2, 2), torch.tensor([6, 7]))


@pytest.mark.parametrize("slot", [12, 1 << 40])
def test_a_slot_out_of_range_is_refused_on_the_host(slot: int) -> None:
    with pytest.raises(IndexError):
        write(
            torch.device("cpu"),
            torch.zeros(2, 3, 4, 1, 2),
            torch.ones(1, 2, 2),
            torch.tensor([slot]),
        )


def test_on_a_device_only_slots_of_the_layer_are_written() -> None:
    memory = torch.zeros(4, 3, 4, 1, 2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = memory.to(device)
    with using("cuda"):
        make_kv_writer(device).write(
            there[1:3],
            torch.ones(4, 2, 2, device=device),
            torch.tensor([-1, 12, 1 << 40, 5], device=device),
        )
    written = there.cpu()[..., 0, 0].nonzero().tolist()
    assert written == [[1, 1, 1], [2, 1, 1]]


def test_tokens_that_do_not_lie_densely_are_refused(device: torch.device) -> None:
    scattered = torch.ones(1, 2, 8).transpose(1, 2)
    with pytest.raises(ValueError, match=r"strides \[16, 1, 8\]"):
        write(device, torch.zeros(2, 3, 4, 4, 2), scattered, torch.tensor([6]))


def as_fp8(device: torch.device, heads: torch.Tensor) -> torch.Tensor:
    layer_kv = torch.zeros(2, 1, 4, 2, 6, dtype=FP8)
    with using("cuda"):
        return write(device, layer_kv, heads, torch.tensor([2]), FP8_SCALES).float()


def test_quotients_by_the_scales_are_stored_in_eight_bits() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # What is exact in FP8: the interpreter rounds otherwise than a GPU.
    values = torch.tensor([1.0, -2.0, 0.0, 0.5, -0.125, 8.0])
    stored = as_fp8(device, values.expand(1, 5, 6).contiguous())[:, 0]
    assert stored[0, 2].tolist() == [(values * 2).tolist(), (values / 2).tolist()]
    assert stored[1, 2].tolist() == [(values / 4).tolist(), (values * 4).tolist()]
    assert int(stored[:, [0, 1, 3]].count_nonzero()) == 0


def test_what_is_too_large_for_eight_bits_is_the_largest() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    values = torch.tensor([1e6, -1e6, math.inf, -math.inf, 224.0, -224.0])
    stored = as_fp8(device, values.expand(1, 5, 6).contiguous())
    assert stored[0, 0, 2, 0].tolist() == [448.0, -448.0, 448.0, -448.0, 448.0, -448.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter rounds to FP8 otherwise")
def test_rounding_to_eight_bits_is_exactly_the_reference() -> None:
    heads = 50 * torch.randn(4, 4, 6)
    heads[0, 0, 0] = math.nan
    expected = torch.zeros(2, 1, 4, 2, 6, dtype=FP8)
    ReferenceKvWriter().write(expected, heads, torch.arange(4), FP8_SCALES)
    with using("cuda"):
        layer_kv = torch.zeros(2, 1, 4, 2, 6, dtype=FP8)
        stored = write(torch.device("cuda"), layer_kv, heads, torch.arange(4), FP8_SCALES)
    assert torch.equal(stored.view(torch.uint8), expected.view(torch.uint8))


def test_int8_is_for_cpus() -> None:
    layer_kv = torch.zeros(2, 1, 4, 2, 10, dtype=torch.int8)
    with using("cuda"), pytest.raises(ValueError, match=r"torch\.int8 are for CPUs"):
        write(torch.device("cpu"), layer_kv, torch.ones(1, 4, 6), torch.tensor([2]))
