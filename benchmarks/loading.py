"""How long does a worker load, and what do two of a host take, with weights of their own and with the same ones?

python benchmarks/loading.py [--quick] [--json FILE]
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

import psutil
from child import Child, questions
from random_models import make_model
from report import Report, arguments

from pagemesh.loading.shared_weights import weight_memory

QUESTION: Final = (
    "Loading, memory and speed of two workers, with weights of their own and with shared ones"
)
MIB: Final = 2**20
_NUM_TOKENS: Final = 64


class _Shared(NamedTuple):
    """Memory of a process that lives as long."""

    process_id: int
    descriptor: int


def _work(parent: Connection, folder: str, shared: _Shared | None) -> None:
    """Load and say how long it took; then generate when asked, and say the milliseconds per token."""
    from pagemesh.kernels.packed_weights import packing_into
    from pagemesh.llm import LLM, SamplingParams
    from pagemesh.loading.shared_weights import SharedWeights

    with ExitStack() as stack:
        started_at = time.perf_counter()
        if shared is not None:
            path = f"/proc/{shared.process_id}/fd/{shared.descriptor}"
            weights = SharedWeights(os.open(path, os.O_RDWR))
            stack.enter_context(packing_into(weights.share))
        llm = stack.enter_context(LLM(folder, device="cpu", dtype="bfloat16", max_model_len=512))
        parent.send(time.perf_counter() - started_at)
        params = SamplingParams(temperature=0.0, max_tokens=_NUM_TOKENS, ignore_eos=True)
        for _ in questions(parent):
            started_at = time.perf_counter()
            llm.generate([{"prompt_token_ids": [7, 8, 9]}], params, use_tqdm=False)
            parent.send((time.perf_counter() - started_at) * 1e3 / _NUM_TOKENS)


def _pair(stack: ExitStack, folder: str, shared: _Shared | None) -> tuple[list[Child], list[float]]:
    """Two workers, one after the other, and the seconds that each took to load."""
    children, seconds = [], []
    for number in range(2):
        children.append(stack.enter_context(Child(f"worker {number}", _work, folder, shared)))
        seconds.append(children[-1].answer())
    return children, seconds


def _resident(children: list[Child]) -> float:
    """MiB of both; pages of both count once."""
    return sum(psutil.Process(child.pid).memory_full_info().pss for child in children) / MIB


def main() -> None:
    """Load pairs of workers, and let them generate in turns."""
    quick, path = arguments("loading", QUESTION)
    name, num_rounds, num_loads = ("10M", 3, 1) if quick else ("160M", 15, 5)
    folder = str(make_model(name))
    report = Report("loading", QUESTION, {"model": name, "dtype": "bfloat16"})
    loads: dict[str, list[float]] = {"own": [], "first to share": [], "second to share": []}
    memory: dict[str, list[float]] = {"own": [], "shared": []}
    tokens: dict[str, list[float]] = {"own": [], "shared": []}
    for turn in range(num_loads):
        with weight_memory() as descriptor, ExitStack() as stack:
            own, seconds = _pair(stack, folder, None)
            loads["own"] += seconds
            together, seconds = _pair(stack, folder, _Shared(os.getpid(), descriptor))
            loads["first to share"].append(seconds[0])
            loads["second to share"].append(seconds[1])
            kinds = {"own": own, "shared": together}
            for kind, children in kinds.items():
                memory[kind].append(_resident(children))
            if turn < num_loads - 1:
                continue
            for _ in range(num_rounds):
                for kind, children in kinds.items():
                    tokens[kind] += [child.ask() for child in children]
    for kind, samples in loads.items():
        report.add(f"loading, {kind}", "s", samples)
    for kind, samples in memory.items():
        report.add(f"memory of two workers, {kind}", "MiB", samples)
    for kind, samples in tokens.items():
        report.add(f"a token of one stream, {kind}", "ms", samples)
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
