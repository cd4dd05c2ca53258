"""What a worker tells of itself, one event at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.cache.digest import CacheDigest
from pagemesh.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks entered a worker's cache."""

    block_hashes: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks left a worker's cache."""

    block_hashes: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Cleared:
    """A worker's cache is empty, or what follows is all that there is in it."""


@dataclass(frozen=True, slots=True)
class Digested:
    """A worker's cache holds this, by its own count, behind all events before; ends a snapshot."""

    digest: CacheDigest


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker is alive, and this busy."""

    load: types_pb2.WorkerLoad


CacheEvent = Stored | Removed | Cleared | Digested
WorkerEvent = CacheEvent | Beat
