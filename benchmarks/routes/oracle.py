"""How many tokens could have been hits, for somebody who knows every cache exactly.

Two computations over the order in which requests came, one request at a time:

- `greedy_hits`: each request goes to the worker that holds most of it at that moment, one that nobody holds
  to where the most room is. Caches have the real size, and are the worker's own `BlockPool` with its LRU.
  This is what a router could reach that is never wrong, never late, and never has to avoid a busy worker.
- `endless_hits`: one cache that forgets nothing. No routing, and no transfer between caches, gives more.
"""

from __future__ import annotations

from collections.abc import Sequence

from workload import Request

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.cache.block_pool import BlockPool

_ROOT = root_hash("oracle", 16, "bfloat16")


class _Cache:
    """One worker that runs one request at a time."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._num_requests = 0

    @property
    def fullness(self) -> tuple[int, int]:
        """Cached blocks, then requests so far."""
        return len(self._pool.cached_hashes()), self._num_requests

    def num_hits(self, prompt_names: Sequence[bytes]) -> int:
        """Leading blocks of a prompt that it holds."""
        return len(self._pool.longest_cached_prefix(prompt_names))

    def run(self, names: Sequence[bytes], num_tokens: int) -> None:
        """A request with so many tokens in all, whose full blocks have these names."""
        self._num_requests += 1
        held = self._pool.longest_cached_prefix(names)
        self._pool.acquire(held)
        new = self._pool.allocate(-(-num_tokens // self._block_size) - len(held))
        for block_id, name in zip(new, names[len(held) :], strict=False):
            self._pool.store(block_id, name)
        self._pool.free([*held, *new])


def greedy_hits(
    requests: Sequence[Request], num_caches: int, num_blocks: int, block_size: int
) -> list[int]:
    """Hit tokens of each request."""
    caches = [_Cache(num_blocks, block_size) for _ in range(num_caches)]
    hits = []
    for number, request in enumerate(requests):
        prompt_names = _prompt_names(request, block_size)
        best = max(
            caches,
            key=lambda one: (one.num_hits(prompt_names), tuple(-n for n in one.fullness)),
        )
        hits.append(best.num_hits(prompt_names) * block_size)
        # What is generated has names too. Nobody else generates the same; the last token has no KV.
        tokens = [*request.prompt, *[number] * (request.num_tokens - 1)]
        best.run(hash_blocks(_ROOT, tokens, block_size), len(tokens))
    return hits


def endless_hits(requests: Sequence[Request], block_size: int) -> list[int]:
    """Hit tokens of each request in one cache without an end."""
    known: set[bytes] = set()
    hits = []
    for request in requests:
        names = _prompt_names(request, block_size)
        hits.append(sum(name in known for name in names) * block_size)
        known.update(names)
    return hits


def _prompt_names(request: Request, block_size: int) -> list[bytes]:
    """Of the blocks that may be hits: the last token of a prompt is computed in any case."""
    return hash_blocks(_ROOT, request.prompt[:-1], block_size)
