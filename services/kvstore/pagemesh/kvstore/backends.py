"""The index and the membership that the settings ask for: of this kvstore alone, or shared by all that use a Redis.

What speaks to Redis is imported only for one: that takes its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from pagemesh.config import KvStoreConfig
from pagemesh.errors import UnavailableError
from pagemesh.kvstore.changes import ChangeLog
from pagemesh.kvstore.index import BlockIndex
from pagemesh.kvstore.members import Members
from pagemesh.kvstore.membership import LocalMembership, Membership
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.rpc.tasks import cancel_to_end
from pagemesh.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from pagemesh.kvstore.redis_client import RedisStore


_log = structlog.get_logger(__name__)


async def open_store(
    config: KvStoreConfig, metrics: Metrics, resources: AsyncExitStack
) -> RedisStore | None:
    """The connection to the server of --index; None for memory.

    Raises ConfigError when the server answers and cannot be used. One that does not answer may still start,
    as it does where everything starts at once: that is said, and waited for.
    """
    if config.index == "memory":
        return None
    from pagemesh.kvstore.redis_client import RedisStore, inspect_server

    store = RedisStore(config.index, metrics)
    resources.push_async_callback(store.close)
    try:
        await inspect_server(store)
    except UnavailableError as error:
        _log.warning("index_waits_for_store", index=store.address, error=error.message)
    return store


def make_index(config: KvStoreConfig, store: RedisStore | None) -> BlockIndex:
    """In memory, or on the server."""
    if store is None:
        return MemoryIndex(max_blocks=config.index_max_blocks)
    from pagemesh.kvstore.redis_index import RedisIndex

    return RedisIndex(store, max_blocks=config.index_max_blocks)


MOVING_TIME = 2.0
"""Seconds in which workers notice that their replica froze, and move to another one (`rpc.channels`)."""


async def open_membership(
    store: RedisStore | None,
    members: Members,
    log: ChangeLog,
    clock: Callable[[], float],
    period: float,
    resources: AsyncExitStack,
) -> Membership:
    """Shared through the store, with which it is kept in step every `period` seconds; or local without one.

    Knows the members of other replicas when this returns, unless the store does not answer or refuses to.
    """
    if store is None:
        return LocalMembership(members)
    from pagemesh.kvstore.redis_roster import RedisRoster
    from pagemesh.kvstore.roster_sync import RosterSync
    from pagemesh.kvstore.shared_membership import SharedMembership

    # Its workers are hardly ever gone because a replica is.
    patience = members.silence_limit + MOVING_TIME
    # The log and the replica are gone with this process, so one name does for both.
    roster = RedisRoster(store, log.log_id, patience)
    membership = SharedMembership(members, roster, clock, patience)
    roster_sync = RosterSync(store, roster, membership, members, log, period)
    await roster_sync.start()
    keeping = asyncio.create_task(roster_sync.run(), name="roster")
    resources.push_async_callback(cancel_to_end, keeping)
    return membership
