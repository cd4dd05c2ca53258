"""Who may join and who has left: decided here alone, or together with other replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from pagemesh.kvstore.members import Member, Members, PublishStream
from pagemesh.v1 import types_pb2


class Membership(Protocol):
    """Changes `Members`. Decisions are made one after the other; none of them waits for long."""

    async def join(self, info: types_pb2.WorkerInfo) -> tuple[Member, bool]:
        """Make an incarnation a member; whether that is new, or it had been one already.

        Raises as `Members.register`, with nothing changed.
        """
        ...

    async def leave(self, stream: PublishStream) -> bool:
        """End a stream, and with it the membership here, if it still speaks for the worker; whether it did.

        When this raises, the membership has ended all the same.
        """
        ...

    async def expire(self, worker_id: str) -> bool:
        """End the membership of a worker that has been silent; whether it was still.

        When this raises, the membership has ended all the same.
        """
        ...

    def on_lost(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """Have `listener` awaited with every worker_id that is no member here any more, though nobody asked for that:
        it publishes to another replica by now, or cannot be in one mesh with what others let in.
        """
        ...


class LocalMembership:
    """That of a kvstore without other replicas."""

    def __init__(self, members: Members) -> None:
        self._members = members

    async def join(self, info: types_pb2.WorkerInfo) -> tuple[Member, bool]:
        return self._members.register(info)

    async def leave(self, stream: PublishStream) -> bool:
        return self._members.detach(stream)

    async def expire(self, worker_id: str) -> bool:
        if worker_id not in self._members.silent():
            return False
        self._members.drop(worker_id)
        return True

    def on_lost(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """See `Membership`. There are no others."""
