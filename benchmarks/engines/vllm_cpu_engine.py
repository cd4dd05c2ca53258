"""vLLM's build for CPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from protocol import serve


class VllmEngine:
    """`vllm.LLM`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        # Read when vllm is imported. Left to itself, it keeps a core for other things.
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(settings["kv_cache_memory"])))
        cores = sorted(os.sched_getaffinity(0))[: settings["threads"]]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
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


if __name__ == "__main__":
    serve(VllmEngine)
