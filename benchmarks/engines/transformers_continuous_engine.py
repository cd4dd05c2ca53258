"""transformers with its own continuous batching over paged KV."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from protocol import serve

_NEVER = -1
"""No token's id: answers end by their length."""

_PAGE_SIZE = 32
"""Tokens. Only full pages can be shared; its default of 256 would compute much of a cached prompt again."""


class ContinuousEngine:
    """One manager for all calls, so that its prefix cache lives."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        torch.set_num_threads(settings["threads"])
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings["model"],
            dtype=getattr(torch, settings["dtype"]),
            attn_implementation="sdpa",
        ).to(settings["device"])
        # Left to itself it takes most of the machine's memory, as it would of a GPU's.
        make_batching: Any = ContinuousBatchingConfig
        parameters = inspect.signature(make_batching).parameters
        # Until some version between 5.17 and 5.23 it is called so.
        page_size = "page_size" if "page_size" in parameters else "block_size"
        batching = make_batching(
            **{page_size: _PAGE_SIZE},
            num_blocks=_num_tokens(settings, model.config) // _PAGE_SIZE,
            max_batch_tokens=settings["max_num_batched_tokens"] or settings["max_model_len"],
            max_requests_per_batch=settings["max_num_seqs"],
        )
        make_config: Any = GenerationConfig
        self._manager = model.eval().init_continuous_batching(
            make_config(do_sample=False, eos_token_id=_NEVER, pad_token_id=0), batching
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

    def add(self, request_id: str, prompt: Sequence[int], num_tokens: int) -> None:
        self._manager.add_request(
            list(prompt),
            request_id=request_id,
            max_new_tokens=num_tokens,
            eos_token_id=_NEVER,
            streaming=True,
        )

    def poll(self, seconds: float) -> Iterator[tuple[str, int]]:
        result = self._manager.get_result(timeout=seconds)
        assert self._manager.is_running(), "the generation thread ended"
        if result is not None:
            yield result.request_id, len(result.generated_tokens)


def _num_tokens(settings: dict[str, Any], config: Any) -> int:
    """Of the KV cache: within the memory for it, and no more than all slots together can use."""
    import torch

    values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    num_bytes = int(values * getattr(torch, settings["dtype"]).itemsize)
    memory = int(settings["kv_cache_memory"] * 2**30)
    num_seats, longest = int(settings["max_num_seqs"]), int(settings["max_model_len"])
    return min(memory // num_bytes, num_seats * longest)


if __name__ == "__main__":
    serve(ContinuousEngine)
