"""Keeps a replica in step with the others while Redis is there, and finds out when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.kvstore.changes import ChangeLog, Loaded
from pagemesh.kvstore.members import Members
from pagemesh.kvstore.redis_client import RedisStore, inspect_server
from pagemesh.kvstore.redis_roster import RedisRoster
from pagemesh.kvstore.shared_membership import SharedMembership
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)

SPACING = 0.05
"""Least seconds between two readings, and between two times that loads are told: bursts are merged."""


class RosterSync:
    """Three loops beside the servicer, on its event loop. Whatever one of them misses, the next beat makes up
    for: news wake a reading early, but there is one at every beat anyhow.
    """

    def __init__(
        self,
        store: RedisStore,
        roster: RedisRoster,
        membership: SharedMembership,
        members: Members,
        log: ChangeLog,
        period: float,
    ) -> None:
        """Beats every `period` seconds."""
        self._store = store
        self._roster = roster
        self._membership = membership
        self._members = members
        self._log = log
        self._period = period
        self._is_restored = False
        # Why the store could not be used at the last beat.
        self._said = ""
        store.on_away(self._on_away)

    async def start(self) -> None:
        """The first beat. One that fails is no reason not to start: those that `run` makes follow."""
        await self._attempt(self.beat)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.beat, self._period), name="roster-beat")
            tasks.create_task(self._repeat(self._follow, SPACING), name="roster-follow")
            tasks.create_task(self._tell_forever(), name="roster-tell")

    async def beat(self) -> None:
        """Say that this replica is alive, and restore everything if Redis was away."""
        if not self._store.answers:
            # It may be another one than before.
            await inspect_server(self._store)
        await self._roster.beat(self._period)
        self._said = ""
        if not self._is_restored:
            self._store.set_answers()
            await self._membership.restore()
            # Meanwhile another command may have failed.
            self._is_restored = self._store.answers

    async def _follow(self) -> None:
        if not self._is_restored:
            await asyncio.sleep(self._period)
            return
        await self._roster.wait_for_news(self._period)
        await self._membership.refresh()

    async def _tell_forever(self) -> None:
        revision = self._log.revision
        while True:
            await self._log.wait_beyond(revision)
            since, revision = revision, self._log.revision
            try:
                await self._roster.tell(self._loads_since(since))
            except UnavailableError:
                pass  # all are told when Redis is back
            except Exception:
                # Task boundary: the next loads may fare better.
                _log.exception("roster_failed")
            await asyncio.sleep(SPACING)

    def _loads_since(self, revision: int) -> list[tuple[str, types_pb2.WorkerLoad]]:
        """The present loads of this replica's workers that have changed."""
        changes = self._log.since(revision)
        worker_ids = (
            {change.event.worker_id for change in changes if isinstance(change.event, Loaded)}
            if changes is not None
            else {member.info.worker_id for member in self._members}
        )
        members = [self._members.get(worker_id) for worker_id in worker_ids]
        return [(m.info.worker_id, m.load) for m in members if m is not None and m.load is not None]

    def _on_away(self) -> None:
        self._is_restored = False

    async def _repeat(self, step: Callable[[], Awaitable[None]], pause: float) -> None:
        while True:
            succeeded = await self._attempt(step)
            await asyncio.sleep(pause if succeeded else self._period)

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Whether a step succeeded; why it did not is said."""
        try:
            await step()
        except UnavailableError:
            return False  # the store has said so
        except ConfigError as error:
            if error.message != self._said:
                self._said = error.message
                _log.error("store_unusable", error=error.message)
            return False
        except Exception:
            # Task boundary: the next round may fare better.
            _log.exception("roster_failed")
            return False
        return True
