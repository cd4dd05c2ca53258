"""Whether torch and CUDA do what `Accelerator` promises."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from pagemesh.engine.accelerator import Event
from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.errors import DeviceLostError

sleep: Any = torch.cuda._sleep
# Some hundred milliseconds of any GPU's clock.
MANY_CYCLES = 400_000_000
LOSE_DEVICE = """
import torch
from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.engine.cuda.accelerator import failing_alone
from pagemesh.errors import DeviceLostError

accelerator = CudaAccelerator(torch.device("cuda"))
try:
    with failing_alone(accelerator, 10.0), accelerator.computing():
        table = torch.zeros(4, device=accelerator.device)
        table.index_select(0, torch.full((1,), 9, device=accelerator.device))
        accelerator.wait(accelerator.record(), 10.0)
except DeviceLostError as error:
    print(error.message)
"""


def test_copies_and_kernels_follow_each_other(accelerator: CudaAccelerator) -> None:
    source, target = (accelerator.pin(8).view(torch.int64) for _ in range(2))
    source.fill_(20)
    with accelerator.computing():
        there = torch.zeros(1, dtype=torch.int64, device=accelerator.device)
        # CUDA loads a kernel when it is first started, and may wait for the stream before.
        there += 1
        accelerator.copy(there, source)
        accelerator.copy(target, there)
        there.zero_()
        accelerator.synchronize()
        target.zero_()
        sleep(MANY_CYCLES)
        accelerator.copy(there, source)
        there += 1
        accelerator.copy(target, there)
        there.zero_()
        event: Event = accelerator.record()
        assert not event.query()
        accelerator.wait(event, 60.0)
    assert event.query()
    assert target.item() == 21


def test_a_wait_ends_when_its_time_is_over(accelerator: CudaAccelerator) -> None:
    with accelerator.computing():
        sleep(MANY_CYCLES)
        event = accelerator.record()
        with pytest.raises(DeviceLostError, match=r"has not finished its work in 0\.01 s"):
            accelerator.wait(event, 0.01)
        accelerator.wait(event, 60.0)


def test_a_graph_reads_what_is_there_when_it_is_replayed(accelerator: CudaAccelerator) -> None:
    with accelerator.computing():
        given = torch.zeros(3, device=accelerator.device)
        doubled = torch.full((3,), 7.0, device=accelerator.device)

        def work() -> None:
            doubled.copy_(given * 2)

        work()
        doubled.fill_(7.0)
        graph = accelerator.capture(work)
        accelerator.synchronize()
        assert doubled.tolist() == [7.0, 7.0, 7.0]
        for value in (1.0, 4.0):
            given.fill_(value)
            graph.replay()
            accelerator.synchronize()
            assert doubled.tolist() == [2 * value] * 3


def test_work_that_waits_is_noticed(accelerator: CudaAccelerator) -> None:
    with accelerator.computing():
        number = torch.ones(1, device=accelerator.device)
        with accelerator.refusing_waits():
            number += 1
            with pytest.raises(RuntimeError, match="synchroniz"):
                number.item()
        assert number.item() == 2.0


def test_a_device_whose_kernel_failed_is_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOSE_DEVICE], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("cuda:0 computes nothing any more")
