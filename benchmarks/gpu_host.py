"""How long a host takes to start the kernels of a step on a GPU, without one.

Everything is as on a GPU but for the driver, which starts nothing: the model has few numbers in each layer, but as
many layers and kernels as Llama 3 8B. What is measured is Python, Triton's launcher excluded.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Kernels are made for the interpreter or for a compiler when they are imported.
os.environ.pop("TRITON_INTERPRET", None)

import torch
from gpu.batches import GREEDY, decode_batch, decodes, prompt
from gpu.model import LLAMA_8B, TOY_SIZES, Subject
from report import Report, make_parser
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.launch import noting
from pagemesh.scheduler.batch import Batch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.host_accelerator import HostAccelerator

QUESTION = "What it takes a host to start a step's kernels, one by one and as a graph, with a driver that starts nothing"
NUM_LAYERS = 32
ROUNDS = 30


class IdleDriver:
    """A Triton driver of a Hopper GPU that is not there."""

    def __init__(self) -> None:
        self.utils = self
        self.num_starts = 0

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The only one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What kernels are compiled for."""
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        """What the compiled are compared with."""
        return {"max_shared_mem": 232_448}

    def load_binary(self, *binary: object) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills, most threads."""
        return 1, 1, 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Starts nothing."""
        return self._start

    def _start(self, *arguments: object) -> None:
        self.num_starts += 1


class IdleGraph:
    """Computes nothing."""

    def replay(self) -> None:
        """One call of the driver, on a GPU."""


class IdleAccelerator(HostAccelerator):
    """Whose graphs are idle as the driver is; what their kernels would have left stays as it was."""

    def capture(self, work: Callable[[], None]) -> Any:
        """Of nothing."""
        return IdleGraph()


def main() -> None:
    """Measure decodes, a chunk, and both: started kernel by kernel, and as graphs."""
    options = make_parser("gpu_host", QUESTION).parse_args()
    idle = IdleDriver()
    driver.set_active(idle)
    torch.set_num_threads(1)
    sizes = LLAMA_8B | TOY_SIZES | {"num_hidden_layers": NUM_LAYERS}
    report = Report("gpu_host", QUESTION, {"layers": NUM_LAYERS})
    accelerator = IdleAccelerator()
    with using("cuda"):
        subject = Subject(
            sizes,
            accelerator,
            num_blocks=600,
            max_num_seqs=65,
            max_num_batched_tokens=512,
            max_model_len=256,
        )
        mixed = decodes(subject, 64, 100, GREEDY)
        mixed.append(prompt(subject, 128, GREEDY, first_block=450))
        batches = {
            "1 decode": decode_batch(subject, 1, 100),
            "64 decodes": decode_batch(subject, 64, 100),
            "64 decodes + 128 tokens": Batch(mixed),
        }
        for name, batch in batches.items():
            with noting() as launches:
                subject.runner.launch(batch)
            report.add(f"{name}: kernels until sampled", "", [len(launches)])
            samples = measure(subject, batch, 5 if options.quick else ROUNDS)
            report.add(f"{name}: host until launched", "ms", samples)
            report.add(
                f"{name}: of a kernel", "us", [1e3 * statistics.median(samples) / len(launches)]
            )
        subject.capture([1, 64], [192])
        for name, batch in batches.items():
            samples = measure(subject, batch, 5 if options.quick else ROUNDS)
            report.add(f"{name}, as a graph: host until launched", "ms", samples)
    report.print()
    report.write(options.json)


def measure(subject: Subject, batch: Batch, rounds: int) -> list[float]:
    """Milliseconds of the thread, in each launch: others may need the cores."""
    subject.runner.launch(batch)
    samples = []
    for _ in range(rounds):
        started = time.thread_time()
        subject.runner.launch(batch)
        samples.append((time.thread_time() - started) * 1e3)
    return samples


if __name__ == "__main__":
    main()
