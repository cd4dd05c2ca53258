"""The plain definition."""

from __future__ import annotations

import torch

from pagemesh.kernels.expert_choice.interface import Choices, check_logits


class ReferenceExpertChoice:
    """`ExpertChoice` by torch, on every device."""

    def __init__(self, num_chosen: int, *, normalize: bool) -> None:
        self._num_chosen = num_chosen
        self._normalize = normalize

    def __call__(self, logits: torch.Tensor) -> Choices:
        check_logits(logits, self._num_chosen)
        if self._normalize:
            # What a softmax over all gives when it is normed to 1 afterwards.
            best, experts = self._best(logits)
            weights = torch.softmax(best, dim=-1, dtype=torch.float32)
        else:
            weights, experts = self._best(torch.softmax(logits, dim=-1, dtype=torch.float32))
        return Choices(weights.to(logits.dtype), experts)

    def _best(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The highest of each row, and where they are; `topk` takes any of equal ones."""
        values, places = torch.sort(values, dim=-1, descending=True, stable=True)
        count = self._num_chosen
        return values[:, :count].contiguous(), places[:, :count].contiguous()
