"""Token ids whose blocks everybody names who names blocks, to find out who names them otherwise.

A worker and a router that named the same blocks differently would never find anything in each other's words:
every lookup would miss, and nothing would say why. So both name these, and compare.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE

CANARY_VERSION: Final = 1
"""Of the ids here and of the conversation in `pagemesh.tokenizer.canary`: goes up when either changes."""

_NUM_BLOCKS: Final = 3
_LARGEST_ID: Final = 262_144
"""As in the largest vocabularies, so that ids of one, two and three bytes are among them."""


def canary_token_ids(block_size: int) -> list[int]:
    """Ids that fill three blocks and a part of a fourth."""
    return [index * 40_503 % _LARGEST_ID for index in range(_NUM_BLOCKS * block_size + 1)]


def digest_names(names: Sequence[bytes]) -> bytes:
    """BLAKE2b-128 of block names."""
    return _digest(b"".join(names))


def digest_text(text: str) -> bytes:
    """BLAKE2b-128 of a text in UTF-8."""
    return _digest(text.encode())


def digest_token_ids(token_ids: Sequence[int]) -> bytes:
    """BLAKE2b-128 of token ids, each as 4 bytes, little-endian."""
    return _digest(struct.pack(f"<{len(token_ids)}I", *token_ids))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=BLOCK_HASH_SIZE).digest()
