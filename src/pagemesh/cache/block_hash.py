"""Names of KV blocks: a keyed BLAKE2b-128 chain over token ids.

A block's name covers every token before it, so two equal names mean equal KV. Whoever knows the root
can name blocks: engine and router compute the same names from the same prompt.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

BLOCK_HASH_SIZE = 16
"""Bytes of a name."""

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
    arithmetic; empty for workers that do not say, whose names are those of versions that knew of none.
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
    """Names of the full blocks of `token_ids`; with a block's name as root, of those that follow it."""
    num_blocks = len(token_ids) // block_size
    num_tokens = num_blocks * block_size
    packed = memoryview(struct.pack(f"<{num_tokens}I", *token_ids[:num_tokens]))
    stride = 4 * block_size
    names: list[bytes] = []
    name = root
    for start in range(0, num_blocks * stride, stride):
        state = _BLOCK.copy()
        state.update(name)
        state.update(packed[start : start + stride])
        name = state.digest()
        names.append(name)
    return names
