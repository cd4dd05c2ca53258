"""What a worker tells of itself, one event at a time."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.cache.block_hash import CacheDigest
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
class Resumed:
    """What a worker's cache held behind all events before, of which some may be lost: the index may have it still."""

    digest: CacheDigest


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker is alive, and this busy."""

    load: types_pb2.WorkerLoad


CacheEvent = Stored | Removed | Cleared | Digested | Resumed
WorkerEvent = CacheEvent | Beat


class EventKind(enum.Enum):
    """What a worker says, as far as its numbering is concerned."""

    CHANGED = "changed"
    """Blocks were stored or removed; or what it holds behind all that, in short."""
    CLEARED = "cleared"
    """Its cache is empty: from here on its blocks are known whatever was missed before."""
    RESUMED = "resumed"
    """Likewise, if the index has them."""
    BEAT = "beat"
    """It is alive."""


def kind_of(event: WorkerEvent) -> EventKind:
    """Of an event, its kind."""
    match event:
        case Stored() | Removed() | Digested():
            return EventKind.CHANGED
        case Cleared():
            return EventKind.CLEARED
        case Resumed():
            return EventKind.RESUMED
        case Beat():
            return EventKind.BEAT
