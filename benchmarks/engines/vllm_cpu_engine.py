"""vLLM's build for CPUs. `--serve PORT` runs its HTTP server instead, after the line with the settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol import serve


class VllmEngine:
    """`vllm.LLM`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        _set_environment(settings)
        from vllm import LLM

        self._llm = LLM(
            model=settings["model"],
            dtype=settings["dtype"],
            max_model_len=settings["max_model_len"],
            max_num_seqs=settings["max_num_seqs"],
        )

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        from vllm import SamplingParams

        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in num_tokens]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


def _set_environment(settings: dict[str, Any]) -> None:
    """What is read when vllm is imported. Left to itself, it keeps a core for other things."""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(settings["kv_cache_memory"])))
    cores = sorted(os.sched_getaffinity(0))[: settings["threads"]]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))


def _become_server(settings: dict[str, Any], port: str) -> None:
    """vLLM's server in place of this process; the model's name is that of its folder."""
    _set_environment(settings)
    flags = {
        "--model": settings["model"],
        "--served-model-name": Path(settings["model"]).name,
        "--dtype": settings["dtype"],
        "--max-model-len": str(settings["max_model_len"]),
        "--max-num-seqs": str(settings["max_num_seqs"]),
        "--host": "127.0.0.1",
        "--port": port,
        "--uvicorn-log-level": "warning",
    }
    # The command `vllm` asks for the version of a package by that name, which this build does not have.
    # With -P it does not find the folder it is started in, where transformers may meet a module `kernels`.
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    os.execv(sys.executable, [*command, *(part for flag in flags.items() for part in flag)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _become_server(json.loads(sys.stdin.readline()), sys.argv[2])
    else:
        serve(VllmEngine)
