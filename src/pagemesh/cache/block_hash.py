"""Hashes of KV blocks: a keyed BLAKE2b-128 chain over token ids, and digests of sets of hashes.

A block's hash covers every token before it, so two equal hashes mean equal KV. From the root on, engine and
router compute the same hashes of the same prompt.

The canary is token ids whose blocks every worker and router hashes: a lookup finds nothing where a worker and a
router hash the same blocks differently. So both hash these, and compare.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import xor
from typing import Final, NamedTuple, Protocol

BLOCK_HASH_SIZE = 16
"""Bytes of a block hash."""

_ROOT = hashlib.blake2b(digest_size=BLOCK_HASH_SIZE, key=b"pagemesh.v1.root")
_BLOCK = hashlib.blake2b(digest_size=BLOCK_HASH_SIZE, key=b"pagemesh.v1.block")


def root_hash(
    model_fingerprint: str,
    block_size: int,
    kv_dtype: str,
    cache_salt: bytes = b"",
    adapter: str = "",
    arithmetic: str = "",
) -> bytes:
    """Start of the chain: everything besides the tokens that makes KV differ, and the tenant's salt.

    `adapter` is the LoRA adapter's name; empty for the model itself. `arithmetic` is the class of the worker's
    arithmetic; empty for workers that do not say, whose hashes are those of versions that knew of none.
    """
    state = _ROOT.copy()
    for part in (model_fingerprint.encode(), kv_dtype.encode(), adapter.encode(), cache_salt):
        # Lengths keep ("ab", "c") apart from ("a", "bc").
        state.update(struct.pack("<Q", len(part)) + part)
    state.update(struct.pack("<Q", block_size))
    if arithmetic:
        part = arithmetic.encode()
        state.update(struct.pack("<Q", len(part)) + part)
    return state.digest()


def hash_blocks(root: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks of `token_ids`; with a block's hash as root, of those that follow it."""
    num_blocks = len(token_ids) // block_size
    num_tokens = num_blocks * block_size
    packed = memoryview(struct.pack(f"<{num_tokens}I", *token_ids[:num_tokens]))
    stride = 4 * block_size
    hashes: list[bytes] = []
    parent = root
    for start in range(0, num_blocks * stride, stride):
        state = _BLOCK.copy()
        state.update(parent)
        state.update(packed[start : start + stride])
        parent = state.digest()
        hashes.append(parent)
    return hashes


class Hasher(Protocol):
    """Hashes the blocks of one engine: by their tokens, or by what a trace says of them."""

    def extend(
        self, hashes: list[bytes], token_ids: Sequence[int], *, salt: bytes = b"", adapter: str = ""
    ) -> None:
        """Append the hashes of the full blocks of `token_ids` that are new; `hashes` has those of the first ones.

        `salt` is the tenant's; `adapter` is the LoRA adapter's name, empty for the model itself.
        """
        ...


class BlockHasher:
    """Hashes the blocks of one model and layout, as tokens become known; routers and schedulers use the same."""

    def __init__(
        self, model_fingerprint: str, block_size: int, kv_dtype: str, arithmetic: str = ""
    ) -> None:
        """As `root_hash` takes them."""
        self._model_fingerprint = model_fingerprint
        self._block_size = block_size
        self._kv_dtype = kv_dtype
        self._arithmetic = arithmetic

    def extend(
        self, hashes: list[bytes], token_ids: Sequence[int], *, salt: bytes = b"", adapter: str = ""
    ) -> None:
        num_hashed_tokens = len(hashes) * self._block_size
        if len(token_ids) - num_hashed_tokens >= self._block_size:
            parent = hashes[-1] if hashes else self._root(salt, adapter)
            hashes += hash_blocks(parent, token_ids[num_hashed_tokens:], self._block_size)

    def canary(self) -> bytes:
        """Digest of the hashes of the canary's blocks, given as to a request whose tokens become known."""
        token_ids = canary_token_ids(self._block_size)
        hashes = list[bytes]()
        for num_tokens in (self._block_size + 1, len(token_ids)):
            self.extend(hashes, token_ids[:num_tokens])
        return digest_hashes(hashes)

    def _root(self, salt: bytes, adapter: str) -> bytes:
        return root_hash(
            self._model_fingerprint,
            self._block_size,
            self._kv_dtype,
            salt,
            adapter,
            self._arithmetic,
        )


CANARY_VERSION: Final = 1
"""Of the ids here and of the conversation in `pagemesh.tokenizer.canary`: goes up when either changes."""

_NUM_BLOCKS: Final = 3
_LARGEST_ID: Final = 262_144
"""As in the largest vocabularies, so that ids of one, two and three bytes are among them."""


def canary_token_ids(block_size: int) -> list[int]:
    """Ids that fill three blocks and a part of a fourth."""
    return [index * 40_503 % _LARGEST_ID for index in range(_NUM_BLOCKS * block_size + 1)]


def digest_hashes(hashes: Sequence[bytes]) -> bytes:
    """BLAKE2b-128 of block hashes."""
    return _digest(b"".join(hashes))


def digest_text(text: str) -> bytes:
    """BLAKE2b-128 of a text in UTF-8."""
    return _digest(text.encode())


def digest_token_ids(token_ids: Sequence[int]) -> bytes:
    """BLAKE2b-128 of token ids, each as 4 bytes, little-endian."""
    return _digest(struct.pack(f"<{len(token_ids)}I", *token_ids))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=BLOCK_HASH_SIZE).digest()


class CacheDigest(NamedTuple):
    """What a cache holds, in short; equal for equal sets of block hashes."""

    num_blocks: int = 0
    """Blocks that it holds."""
    names_xor: int = 0
    """Exclusive or of their hashes, see `xor_hashes`."""


def xor_hashes(hashes: Iterable[bytes]) -> int:
    """Exclusive or of 16-byte hashes, each read as a big-endian number; 0 of none.

    To come and to leave change it alike. Each hash has to be given once.
    """
    return reduce(xor, map(int.from_bytes, hashes), 0)
