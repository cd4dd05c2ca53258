"""Whose cached blocks a request can meet: those of its tenant, and of these, those with the same salt."""

from __future__ import annotations

import hashlib
import struct
from typing import Final

_SALT: Final = hashlib.blake2b(digest_size=16, key=b"pagemesh.v1.tenant")


def tenant_salt(tenant: str, body_salt: str) -> bytes:
    """The salt of the names of a request's blocks; empty where nobody asks for one.

    A body can only separate its request from others of its tenant: no `body_salt` reaches another tenant's
    blocks.
    """
    if not tenant and not body_salt:
        return b""
    name = tenant.encode()
    state = _SALT.copy()
    # The length keeps ("ab", "c") apart from ("a", "bc"). JSON can hold half a surrogate pair.
    state.update(struct.pack("<Q", len(name)) + name + body_salt.encode(errors="surrogatepass"))
    return state.digest()
