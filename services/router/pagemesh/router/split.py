"""Divides what comes under one name among several, by weights; what belongs together stays together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

_RANGE = 2**64


def choose(weights: Mapping[str, float], key: bytes) -> str:
    """The one that a key belongs to: of all keys, each gets its share by weight.

    Weighted rendezvous hashing: when one comes or goes, or gets another weight, only the keys move that it gets
    or had. (Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005.)
    """
    return min(weights, key=lambda name: _distance(name, key) / weights[name])


def _distance(name: str, key: bytes) -> float:
    """Exponentially distributed over all keys."""
    digest = hashlib.blake2b(name.encode() + b"\0" + key, digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "big") + 0.5) / _RANGE)
