"""How large KV caches are, in vLLM's words."""

from __future__ import annotations

from typing import NamedTuple

from pagemesh.core.kv import KvLayout


class CacheSize(NamedTuple):
    """Of one cache, or of several with one kind of block together."""

    block_size: int
    dtype: str
    num_blocks: int
    max_concurrency: float
    """Requests of the longest context that fit at once."""

    @classmethod
    def of(cls, layout: KvLayout, num_blocks: int, max_model_len: int) -> CacheSize:
        """The size of a worker's cache."""
        # What a worker says of itself may be anything.
        concurrency = num_blocks * layout.block_size / max(1, max_model_len)
        return cls(layout.block_size, layout.dtype, num_blocks, concurrency)

    def plus(self, other: CacheSize) -> CacheSize:
        """Both together; their blocks are of one kind."""
        return self._replace(
            num_blocks=self.num_blocks + other.num_blocks,
            max_concurrency=self.max_concurrency + other.max_concurrency,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the labels that vllm:cache_config_info has of it, in their order."""
        num_tokens = self.num_blocks * self.block_size
        concurrency = f"{self.max_concurrency:.2f}"
        return str(self.block_size), self.dtype, str(self.num_blocks), str(num_tokens), concurrency
