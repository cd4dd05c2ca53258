"""The names of requests' blocks, computed as their tokens become known."""

from __future__ import annotations

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.engine.interface import EngineInfo
from pagemesh.scheduler.request import Request


class BlockNames:
    """Names the blocks of one engine's model and layout."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._block_size = info.layout.block_size

    def extend(self, request: Request) -> None:
        """Name all full blocks of the request's known tokens."""
        hashes = request.block_hashes
        num_hashed_tokens = len(hashes) * self._block_size
        if len(request.token_ids) - num_hashed_tokens >= self._block_size:
            parent = hashes[-1] if hashes else self._root(request.spec.cache_salt)
            hashes += hash_blocks(parent, request.token_ids[num_hashed_tokens:], self._block_size)

    def _root(self, cache_salt: bytes) -> bytes:
        layout = self._info.layout
        return root_hash(self._info.model_fingerprint, layout.block_size, layout.dtype, cache_salt)
