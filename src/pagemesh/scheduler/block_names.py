"""The names of requests' blocks, computed as their tokens become known."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.cache.canary import canary_token_ids, digest_names
from pagemesh.engine.interface import EngineInfo
from pagemesh.scheduler.request import Request


class BlockNames:
    """Names the blocks of one engine's model and layout."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._block_size = info.layout.block_size

    def extend(self, request: Request) -> None:
        """Name all full blocks of the request's known tokens."""
        self._extend(request.block_hashes, request.token_ids, request.spec.cache_salt)

    def canary(self) -> bytes:
        """Digest of the names of the canary's blocks, given as to a request whose tokens become known."""
        token_ids = canary_token_ids(self._block_size)
        names = list[bytes]()
        for num_tokens in (self._block_size + 1, len(token_ids)):
            self._extend(names, token_ids[:num_tokens], cache_salt=b"")
        return digest_names(names)

    def _extend(self, names: list[bytes], token_ids: Sequence[int], cache_salt: bytes) -> None:
        num_named_tokens = len(names) * self._block_size
        if len(token_ids) - num_named_tokens >= self._block_size:
            parent = names[-1] if names else self._root(cache_salt)
            names += hash_blocks(parent, token_ids[num_named_tokens:], self._block_size)

    def _root(self, cache_salt: bytes) -> bytes:
        info, layout = self._info, self._info.layout
        return root_hash(
            info.model_fingerprint,
            layout.block_size,
            layout.dtype,
            cache_salt,
            arithmetic=info.arithmetic,
        )
