"""One session for each decode worker in the directory, opened when it joins and retired when it leaves."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from pagemesh.membership.directory import Directory
from pagemesh.membership.roster import MemberChange, WorkerState
from pagemesh.router.session import WorkerSession
from pagemesh.rpc.identity import Identity
from pagemesh.v1 import types_pb2

MEETING_S: Final = 2.0
"""For kvstore and workers to answer a router that starts; without them it serves all the same."""

EXPECTED_S: Final = 5.0
"""In which a worker that left without a word is expected again: it may be starting, or may not have gone at all.

A kvstore whose own cable was pulled loses all its workers at once, and they are with another one a moment later."""

_LOOK_S: Final = 0.01


class SessionPool:
    """Sessions by worker id. Belongs to one event loop; start → use → close."""

    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity
        self._sessions: dict[str, WorkerSession] = {}
        self._retiring: dict[asyncio.Task[None], WorkerSession] = {}
        self._lost_at: dict[str, float] = {}
        """By the model's name: when a worker was there last that had not said that it stops."""

    def follow(self, directory: Directory) -> None:
        """Keep up with the directory's decode workers from now on."""
        directory.subscribe(self._on_change)

    def get(self, worker_id: str) -> WorkerSession | None:
        """The session to a member; None for others."""
        return self._sessions.get(worker_id)

    def has_just_lost(self, model_name: str) -> bool:
        """Whether a decode worker of the model left without a word a moment ago."""
        lost_at = self._lost_at.get(model_name)
        return lost_at is not None and time.monotonic() - lost_at < EXPECTED_S

    async def meet(self, directory: Directory) -> None:
        """Wait until the workers that there are can be sent requests, but not for long.

        A gateway shares its requests among all routers that serve, also with one that knows nobody yet.
        """
        until = time.monotonic() + MEETING_S
        while not (directory.is_following and all(map(_is_open, self._sessions.values()))):
            if time.monotonic() >= until:
                return
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """End all sessions and the requests on them. Idempotent."""
        sessions = [*self._sessions.values(), *self._retiring.values()]
        self._sessions.clear()
        await asyncio.gather(*(session.close() for session in sessions))
        # Closing ended their last requests, which is what they wait for.
        await asyncio.gather(*self._retiring)

    def _on_change(self, change: MemberChange, worker: WorkerState) -> None:
        if worker.role != types_pb2.WORKER_ROLE_DECODE:
            return
        if change is MemberChange.JOINED:
            session = WorkerSession(worker.info, self._identity)
            self._sessions[worker.worker_id] = session
            session.start()
            return
        left = self._sessions.pop(worker.worker_id, None)
        if left is not None:
            if not left.is_draining:
                self._lost_at[worker.info.model_name] = time.monotonic()
            # What runs there may go on: a worker also leaves when only its kvstore stream broke.
            task = asyncio.create_task(left.retire(), name=f"retire-{worker.worker_id}")
            self._retiring[task] = left
            task.add_done_callback(lambda done: self._retiring.pop(done))


def _is_open(session: WorkerSession) -> bool:
    return session.is_live or session.is_draining
