"""An engine under measurement, as a process that is asked and timed."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil
from report import ROOT
from workload import Request

ENGINES = ROOT / "benchmarks/engines"
SETTLE_S = 1.5
"""How long to wait before the next engine's turn: some spin on a core for a second after their work."""

_STOP_S = 30.0


@dataclass(frozen=True)
class EngineSettings:
    """The same for every engine, as far as it has such a setting."""

    model: str
    """Folder."""
    threads: int
    dtype: str = "bfloat16"
    max_model_len: int = 2048
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    """Unset, each engine's own default; transformers' is then a prompt of full length."""
    kv_cache_memory: float = 2.0
    """GiB."""
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    """How the weights of a dense checkpoint are quantised: by ours while it loads them."""
    device: str = "cpu"
    enable_prefix_caching: bool = True
    """Ours may go without."""


class Answer(NamedTuple):
    """What a call took."""

    seconds: float
    num_tokens: int
    """Generated tokens of all prompts."""


class Arrival(NamedTuple):
    """When the tokens of one answer came, in seconds since the first request could come."""

    first: float
    last: float


class EngineProcess:
    """Started by the constructor, stopped on exit.

    `python` has the engine's packages; `script` is in benchmarks/engines, unless it is named from the root.
    """

    def __init__(self, python: Path, script: str, settings: EngineSettings) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed on exit
        started = time.perf_counter()
        threads = str(settings.threads)
        self._process = subprocess.Popen(
            [str(python), str(ENGINES / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            env=os.environ | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"},
        )
        self._ask(asdict(settings))
        self.ready_s = time.perf_counter() - started
        """From the start of the process until it can serve."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def generate(self, requests: Sequence[Request]) -> Answer:
        """Have all requests answered in one call."""
        answer = self._ask(
            {
                "prompts": [request.prompt for request in requests],
                "num_tokens": [request.num_tokens for request in requests],
            }
        )
        wanted = [request.num_tokens for request in requests]
        assert answer["num_tokens"] == wanted, f"{answer['num_tokens']} tokens instead of {wanted}"
        return Answer(answer["seconds"], sum(wanted))

    def stream(self, requests: Sequence[Request], due: Sequence[float]) -> list[Arrival]:
        """Have each request answered from when it is due, in seconds; only for a `StreamingEngine`."""
        answer = self._ask(
            {
                "prompts": [request.prompt for request in requests],
                "num_tokens": [request.num_tokens for request in requests],
                "due": due,
            }
        )
        return [Arrival(*times) for times in answer["arrivals"]]

    def memory_mb(self) -> float:
        """Resident memory in MiB: the largest process, and what its others have for themselves alone.

        Proportional sizes would have engines that map the same checkpoint share its weights.
        """
        process = psutil.Process(self._process.pid)
        processes = [process, *process.children(recursive=True)]
        largest, *others = sorted(
            (one.memory_full_info() for one in processes), key=lambda memory: -memory.rss
        )
        return float(largest.rss + sum(memory.uss for memory in others)) / 2**20

    def _ask(self, call: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"the engine ended:\n{self._log.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def prepare(python: Path, script: str, model: str, way: str | None) -> None:
    """Have an engine bring a model into its own form, quantised or not, in a process that is not measured."""
    arguments = ["--prepare", model, *([] if way is None else [way])]
    subprocess.run([str(python), str(ENGINES / script), *arguments], check=True, stdout=2)
