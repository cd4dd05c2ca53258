"""What a worker tells of itself, one event at a time, and the recent past of membership and load.

Watchers follow the past by its revisions, and pick it up again where they were cut off.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker became a member, or was replaced by a newer incarnation."""

    info: types_pb2.WorkerInfo


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is no longer a member."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker reported its load."""

    worker_id: str
    load: types_pb2.WorkerLoad


@dataclass(frozen=True, slots=True)
class Change:
    """One change and its place in the order of all changes."""

    revision: int
    event: Joined | Left | Loaded


def load_of(loaded: Change | None) -> types_pb2.WorkerLoad | None:
    """What a change says that reported a load."""
    if loaded is None:
        return None
    assert isinstance(loaded.event, Loaded)
    return loaded.event.load


class ChangeLog:
    """The last `capacity` changes, with revisions that grow by one. Belongs to one event loop.

    Revisions mean something only together with `log_id`: another process, and this one after a restart,
    counts its own.
    """

    def __init__(self, first_revision: int = 1, capacity: int = 8192) -> None:
        """`first_revision` is above 0, which stands for having seen nothing. Both are for tests: numbers that are like
        no others, and a reader that is soon too slow.
        """
        self.log_id = uuid.uuid4().hex
        self._changes: deque[Change] = deque(maxlen=capacity)
        self._revision = first_revision
        self._appended = asyncio.Event()

    @property
    def revision(self) -> int:
        """Revision of the last change."""
        return self._revision

    def append(self, event: Joined | Left | Loaded) -> Change:
        """Note a change and wake whoever waits for one."""
        self._revision += 1
        change = Change(self._revision, event)
        self._changes.append(change)
        self._appended.set()
        self._appended = asyncio.Event()
        return change

    def since(self, revision: int) -> Sequence[Change] | None:
        """Changes behind a revision; None when that is too long ago, or was never reached."""
        num_missed = self._revision - revision
        if not 0 <= num_missed <= len(self._changes):
            return None
        return list(itertools.islice(self._changes, len(self._changes) - num_missed, None))

    async def wait_beyond(self, revision: int) -> None:
        """Wait until there is a change behind a revision; ends with the first one, or by cancellation."""
        while self._revision <= revision:
            await self._appended.wait()


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
