"""pagemesh's own engine, as anybody uses it offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol import serve


class PagemeshEngine:
    """`LLM`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from pagemesh.llm import LLM

        num_tokens = settings["max_num_batched_tokens"]
        self._llm = LLM(
            settings["model"],
            dtype=settings["dtype"],
            threads=settings["threads"],
            max_model_len=settings["max_model_len"],
            max_num_seqs=settings["max_num_seqs"],
            kv_cache_memory=settings["kv_cache_memory"],
            kv_cache_dtype=settings["kv_cache_dtype"],
            quantization=settings["quantization"],
            device=settings["device"],
            enable_prefix_caching=settings["enable_prefix_caching"],
            **({} if num_tokens is None else {"max_num_batched_tokens": num_tokens}),
        )

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        from pagemesh.llm import SamplingParams

        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in num_tokens]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    serve(PagemeshEngine)
