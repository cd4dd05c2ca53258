"""Where a model comes to lie, and of which type its KV is there."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pagemesh.config import KvCacheDtype
from pagemesh.models.choices import choose_kv_dtype
from pagemesh.models.filling import HOST, Filler


class Place(NamedTuple):
    """What a loader needs to know of the device."""

    filler: Filler
    kv_cache_dtype: KvCacheDtype

    def kv_dtype(self, dtype: str, *, causal: bool) -> str:
        """Type of the KV blocks of a model that runs in `dtype`, by its name in torch.

        ConfigError for one that the device, or an encoder, cannot have.
        """
        kind: Literal["cpu", "cuda"] = "cpu" if self.filler is HOST else "cuda"
        return choose_kv_dtype(self.kv_cache_dtype, dtype, kind, causal=causal)


ON_HOST: Final = Place(HOST, "auto")
