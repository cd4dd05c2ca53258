"""Where a model comes to lie, of which type its KV is there, and how it is computed."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import torch

from pagemesh.config import KvCacheDtype
from pagemesh.kernels.arithmetic import arithmetic_of
from pagemesh.models.choices import choose_kv_dtype
from pagemesh.models.filling import HOST, WeightWriter


class ModelTarget(NamedTuple):
    """What a loader needs to know of the device."""

    writer: WeightWriter
    kv_cache_dtype: KvCacheDtype

    def kv_dtype(self, dtype: str, *, causal: bool) -> str:
        """Type of the KV blocks of a model that runs in `dtype`, by its name in torch.

        ConfigError for one that the device, or an encoder, cannot have.
        """
        kind: Literal["cpu", "cuda"] = "cpu" if self.writer is HOST else "cuda"
        return choose_kv_dtype(self.kv_cache_dtype, dtype, kind, causal=causal)

    def arithmetic(self, dtype: torch.dtype) -> str:
        """Class of the arithmetic that a model of pagemesh's own has there, whose weights are of this type."""
        return arithmetic_of(self.writer.device, dtype)


ON_HOST: Final = ModelTarget(HOST, "auto")
