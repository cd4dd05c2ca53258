from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pagemesh.engine.cuda.transfers import Transfers
from tests.support.host_accelerator import HostAccelerator


@pytest.fixture
def accelerator() -> HostAccelerator:
    return HostAccelerator()


@pytest.fixture
def transfers(accelerator: HostAccelerator) -> Transfers:
    return Transfers(accelerator, timeout=1.0)


def test_arrays_of_several_types_go_up_by_one_copy(
    accelerator: HostAccelerator, transfers: Transfers
) -> None:
    arrays: list[npt.NDArray[Any]] = [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array([0.5, 0.25], np.float64),
        np.array([7], np.int32),
        np.zeros((0, 4), np.float32),
    ]
    tensors = transfers.upload(arrays)
    assert accelerator.num_copies == 1
    assert [tensor.dtype for tensor in tensors] == [
        torch.int64,
        torch.float64,
        torch.int32,
        torch.float32,
    ]
    assert [tensor.tolist() for tensor in tensors] == [
        [[0, 1, 2], [3, 4, 5]],
        [0.5, 0.25],
        [7],
        [],
    ]
    assert all(tensor.data_ptr() % 16 == tensors[0].data_ptr() % 16 for tensor in tensors)


def test_nothing_to_send_is_not_copied(accelerator: HostAccelerator, transfers: Transfers) -> None:
    (tensor,) = transfers.upload([np.zeros((0,), np.int32)])
    assert tensor.shape == (0,)
    assert accelerator.num_copies == 0


def test_what_is_reserved_keeps_its_place(transfers: Transfers) -> None:
    memory, (first, second) = transfers.reserve([np.zeros(3, np.int64), np.zeros(2, np.int32)])
    for value in (4, 9):
        transfers.upload([np.full(3, value, np.int64), np.full(2, -value, np.int32)], memory)
        assert first.tolist() == [value] * 3
        assert second.tolist() == [-value] * 2


def test_arrays_that_do_not_fit_their_place_are_refused(transfers: Transfers) -> None:
    memory, _ = transfers.reserve([np.zeros(3, np.int64)])
    with pytest.raises(ValueError, match="32 bytes of arrays do not fit a buffer of 24"):
        transfers.upload([np.zeros(4, np.int64)], memory)


def test_nothing_is_to_be_read_before_the_wait(transfers: Transfers) -> None:
    source = torch.arange(4)
    download = transfers.download([source, torch.tensor([[1.5]])])
    source.zero_()
    ids, values = download.read()
    assert ids.tolist() == [0, 1, 2, 3]
    assert values.tolist() == [[1.5]]


def test_pinned_memory_is_not_written_while_a_copy_from_it_is_in_flight(
    accelerator: HostAccelerator, transfers: Transfers
) -> None:
    for value in range(5):
        transfers.upload([np.full(10, value, np.int64)])
    # Here the accelerator compares what was sent with what is in the memory now.
    accelerator.synchronize()
    assert accelerator.num_pinned == 5
    transfers.upload([np.full(10, 9, np.int64)])
    assert accelerator.num_pinned == 5


def test_what_was_read_is_not_overwritten_by_the_next_one(
    accelerator: HostAccelerator, transfers: Transfers
) -> None:
    first = transfers.download([torch.tensor([1, 2])])
    second = transfers.download([torch.tensor([3, 4])])
    accelerator.synchronize()
    third = transfers.download([torch.tensor([5, 6])])
    assert [download.read()[0].tolist() for download in (third, first, second)] == [
        [5, 6],
        [1, 2],
        [3, 4],
    ]
    assert accelerator.num_pinned == 3
    del first
    transfers.download([torch.tensor([7])])
    assert accelerator.num_pinned == 3


def test_memory_that_was_too_small_makes_room_for_larger(
    accelerator: HostAccelerator, transfers: Transfers
) -> None:
    for size in (10, 20_000, 20_000):
        transfers.upload([np.arange(size, dtype=np.int64)])
        accelerator.synchronize()
    assert accelerator.num_pinned == 2
