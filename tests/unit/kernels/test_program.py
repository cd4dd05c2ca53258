"""Kernels that were recorded give the same bits when they are run again on other contents of their memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from pagemesh.kernels.gated_activation import Gate
from pagemesh.kernels.jit.program import Program
from pagemesh.kernels.jit.recording import ResultMemory, recording
from pagemesh.kernels.linear import Dense, GatedLinear, Linear, make_gated_linear, make_linear
from pagemesh.kernels.rms_norm import RmsNormFunction, make_rms_norm

SIZE = 96
NUM_LAYERS = 6


class Layer:
    """A norm and an MLP."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.norm: RmsNormFunction = make_rms_norm(torch.rand(SIZE) + 0.5, 1e-5)
        self.expand: GatedLinear = make_gated_linear(
            Dense((torch.randn(4 * SIZE, SIZE) / 8).to(dtype)), None, Gate("silu")
        )
        self.down: Linear = make_linear(Dense((torch.randn(SIZE, 2 * SIZE) / 8).to(dtype)), None)

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down.add_to(hidden, self.expand(self.norm(hidden)))


def run_layers(layers: list[Layer], hidden: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        hidden = layer.compute(hidden)
    return hidden


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_program_computes_what_its_kernels_computed(dtype: torch.dtype, num_threads: int) -> None:
    torch.manual_seed(3)
    layers = [Layer(dtype) for _ in range(NUM_LAYERS)]
    inputs = torch.randn(4, SIZE).to(dtype)
    memory = ResultMemory()
    with torch.inference_mode(), threads(num_threads):
        with recording(memory) as recorded:
            output = run_layers(layers, inputs)
        assert torch.equal(output, run_layers(layers, inputs))
        assert recorded.others == []
        program = Program(recorded.calls)
        assert len(program) >= 3 * NUM_LAYERS
        for _ in range(50):
            inputs.copy_(torch.randn(4, SIZE))
            program.run()
            assert torch.equal(output, run_layers(layers, inputs))


def test_threads_that_are_kept_from_their_cores_are_waited_for() -> None:
    """More threads than cores, and others that want them: every kernel still sees all of the one before."""
    torch.manual_seed(4)
    layers = [Layer(torch.float32) for _ in range(NUM_LAYERS)]
    inputs = torch.randn(16, SIZE)
    memory = ResultMemory()
    is_over = threading.Event()

    def spin() -> None:
        while not is_over.is_set():
            torch.ones(1 << 16).exp()

    spinning = [threading.Thread(target=spin) for _ in range(2)]
    for thread in spinning:
        thread.start()
    try:
        with torch.inference_mode(), threads(4):
            with recording(memory) as recorded:
                output = run_layers(layers, inputs)
            program = Program(recorded.calls)
            for _ in range(20):
                inputs.copy_(torch.randn(16, SIZE))
                program.run()
                assert torch.equal(output, run_layers(layers, inputs))
    finally:
        is_over.set()
        for thread in spinning:
            thread.join()


def test_what_is_no_kernel_is_named() -> None:
    layer, inputs = Layer(torch.float32), torch.zeros(2, SIZE)
    with torch.inference_mode(), recording(ResultMemory()) as recorded:
        hidden = layer.compute(inputs)
        hidden.view(2, 2, -1).transpose(0, 1)[0].flatten()
        assert recorded.others == []
        layer.compute(hidden + 1.0)
    assert recorded.others == ["aten.add.Tensor"]


def test_recordings_share_the_memory_of_their_results() -> None:
    layers = [Layer(torch.float32) for _ in range(NUM_LAYERS)]
    memory = ResultMemory()
    programs = []
    num_bytes = []
    with torch.inference_mode():
        for num_rows in (8, 4, 8):
            inputs = torch.randn(num_rows, SIZE)
            with recording(memory) as recorded:
                output = run_layers(layers, inputs)
            programs.append((Program(recorded.calls), inputs, run_layers(layers, inputs)))
            num_bytes.append(memory.num_bytes)
            del output
        assert num_bytes[0] < NUM_LAYERS * 8 * SIZE * 4 * 4
        assert num_bytes[2] == num_bytes[1]
        for program, inputs, expected in programs:
            program.run()
            assert torch.equal(run_layers(layers, inputs), expected)


def test_no_kernels_are_a_program_as_well() -> None:
    Program([]).run()
