"""transformers as most people run it: padded batches that end with their longest answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol import serve


class TransformersEngine:
    """`model.generate`; it keeps no prefix cache."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(settings["threads"])
        self._batch_size: int = settings["max_num_seqs"]
        dtype = getattr(torch, settings["dtype"])
        model: Any = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=dtype)
        self._model = model.eval()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        for begin in range(0, len(prompts), self._batch_size):
            end = begin + self._batch_size
            self._generate(prompts[begin:end], max(num_tokens[begin:end]))
        # Longer answers than were asked for are cut.
        return list(num_tokens)

    def _generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        import torch

        longest = max(map(len, prompts))
        pads = [longest - len(prompt) for prompt in prompts]
        padded = zip(pads, prompts, strict=True)
        token_ids = torch.tensor([[0] * pad + list(prompt) for pad, prompt in padded])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
        with torch.inference_mode():
            answers = self._model.generate(
                token_ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
                pad_token_id=0,
            )
        assert answers.shape[1] == longest + num_tokens


if __name__ == "__main__":
    serve(TransformersEngine)
