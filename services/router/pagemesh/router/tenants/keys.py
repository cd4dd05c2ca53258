"""Keys and their hashes.

A key is 32 random bytes, so a plain SHA-256 of it cannot be turned back; what makes the hashes of passwords
slow guards secrets that can be guessed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Final

from pagemesh.router.tenants.tenant import Tenant

_PREFIX: Final = "pm-"
_NUM_BYTES: Final = 32
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")


def new_key() -> str:
    """A key that nobody else has."""
    return _PREFIX + secrets.token_urlsafe(_NUM_BYTES)


def digest_of(key: str) -> bytes:
    """By which a key is found."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def hash_of(key: str) -> str:
    """The digest as it stands in key files."""
    return f"sha256:{digest_of(key).hex()}"


def read_hash(text: str) -> bytes | None:
    """The digest that is written so; None for anything else."""
    found = _HASH.fullmatch(text)
    return None if found is None else bytes.fromhex(found[1])


class KeyRing:
    """Whose key is whose."""

    def __init__(self, tenants: Mapping[bytes, Tenant]) -> None:
        """By the digests of their keys."""
        self._tenants = tenants

    def find(self, key: str) -> Tenant | None:
        """Whose key it is.

        How long this takes says nothing of other keys: what is compared are digests, which nobody can choose.
        """
        return self._tenants.get(digest_of(key))
