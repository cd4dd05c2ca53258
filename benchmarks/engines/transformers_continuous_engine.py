"""transformers with its own continuous batching over paged KV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol import serve

_NEVER = -1
"""No token's id: answers end by their length."""


class ContinuousEngine:
    """One manager for all calls, so that its prefix cache lives."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        torch.set_num_threads(settings["threads"])
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings["model"],
            dtype=getattr(torch, settings["dtype"]),
            attn_implementation="sdpa",
        )
        make_config: Any = GenerationConfig
        self._manager = model.eval().init_continuous_batching(
            make_config(do_sample=False, eos_token_id=_NEVER, pad_token_id=0)
        )
        self._manager.start()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        ids = [
            self._manager.add_request(list(prompt), max_new_tokens=number, eos_token_id=_NEVER)
            for prompt, number in zip(prompts, num_tokens, strict=True)
        ]
        lengths: dict[str, int] = {}
        while len(lengths) < len(ids):
            result = self._manager.get_result(timeout=1)
            if result is None:
                assert self._manager.is_running(), "the generation thread ended"
            elif result.is_finished():
                lengths[result.request_id] = len(result.generated_tokens)
        return [lengths[request_id] for request_id in ids]


if __name__ == "__main__":
    serve(ContinuousEngine)
