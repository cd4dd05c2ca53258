"""Memory of intermediate results that stays where it is from call to call, as long as it is large enough."""

from __future__ import annotations

from math import prod

import torch


class Scratch:
    """Tensors by name; each is overwritten by the next one of that name."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """A dense tensor whose content is whatever is there. One name has one type."""
        size = prod(shape)
        tensor = self._tensors.get(name)
        if tensor is None or tensor.numel() < size:
            # A little more each time would leave many small pieces behind, which no allocator joins.
            grown = 1 << max(size - 1, 0).bit_length()
            tensor = self._tensors[name] = torch.empty(grown, dtype=dtype, device=self._device)
        return tensor[:size].view(shape)
