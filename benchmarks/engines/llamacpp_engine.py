"""llama.cpp's own server in this process, as the wheels of xllamacpp bring it; its model is a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from protocol import serve


class LlamaCppEngine:
    """One call of the server for each prompt, all at once."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = settings["model"]
        params.n_parallel = settings["max_num_seqs"]
        # Of all sequences together, which share one cache.
        params.n_ctx = settings["max_model_len"] * settings["max_num_seqs"] // 8
        params.kv_unified = True
        params.fit_params = False
        params.warmup = False
        params.cache_ram_mib = 0
        params.cpuparams.n_threads = settings["threads"]
        params.cpuparams_batch.n_threads = settings["threads"]
        self._server = xllamacpp.Server(params)
        self._callers = ThreadPoolExecutor(settings["max_num_seqs"])

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        return list(self._callers.map(self._generate, prompts, num_tokens))

    def _generate(self, prompt: Sequence[int], num_tokens: int) -> int:
        answer = self._server.handle_completions(
            {
                "prompt": list(prompt),
                "max_tokens": num_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": True,
            }
        )
        return int(answer["usage"]["completion_tokens"])


if __name__ == "__main__":
    serve(LlamaCppEngine)
