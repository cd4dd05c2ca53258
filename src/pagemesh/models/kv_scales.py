"""Scales of 8-bit keys and values, as checkpoints name them.

What is stored times its scale is the key or the value. Checkpoints that were calibrated have one number
for the keys and one for the values of each layer, or one for each head of them, under the names that vLLM
reads (https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache). A checkpoint without any
has a scale of 1 everywhere, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.architectures.architecture import scale_names
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.choices import FP8_KV


class CheckpointScales:
    """The scales of a checkpoint for KV blocks of one type; none but for 8 bits."""

    def __init__(self, checkpoint: Checkpoint, kv_dtype: str) -> None:
        self._checkpoint = checkpoint
        self._needed = kv_dtype == FP8_KV
        self._names = scale_names(checkpoint.entries.keys()) if self._needed else []

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors that are used."""
        return [name.tensor for name in self._names]

    def give(
        self, layers: Sequence[LayerAttention], num_kv_heads: int, device: torch.device
    ) -> Sequence[LayerAttention]:
        """Layers with their scales on a device, or as they are where none are needed.

        Layers that attend alike still share one where they have no scales of their own. Raises
        ConfigError for scales that are no positive numbers, or neither one nor one for each head.
        """
        if not self._needed:
            return layers
        found: dict[int, dict[str, torch.Tensor]] = {}
        for name in self._names:
            scale = _read(self._checkpoint, name.tensor, num_kv_heads)
            found.setdefault(name.layer, {})[name.part] = scale.to(device)
        one = torch.ones(num_kv_heads, device=device)
        made: dict[tuple[int, int | None], LayerAttention] = {}
        for index, layer in enumerate(layers):
            parts = found.get(index, {})
            scales = KvScales(parts.get("k", one), parts.get("v", one))
            made.setdefault(_key(index, layer, parts), replace(layer, kv_scales=scales))
        return [
            made[_key(index, layer, found.get(index, {}))] for index, layer in enumerate(layers)
        ]


def _key(
    index: int, layer: LayerAttention, parts: dict[str, torch.Tensor]
) -> tuple[int, int | None]:
    return id(layer), index if parts else None


def _read(checkpoint: Checkpoint, name: str, num_kv_heads: int) -> torch.Tensor:
    """float32 [kv heads]."""
    scale = checkpoint.read(name).float().flatten()
    path = checkpoint.entries[name].path
    if len(scale) not in (1, num_kv_heads):
        raise ConfigError(
            f"{path} has the tensor {name} with {len(scale)} numbers, but must have one, or one for each of"
            f" {num_kv_heads} heads"
        )
    if not (scale.isfinite() & (scale > 0)).all():
        raise ConfigError(f"{path} has the tensor {name} of {scale.tolist()}, but must be positive")
    return scale.expand(num_kv_heads).contiguous()
