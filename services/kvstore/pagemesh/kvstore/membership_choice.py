"""The membership that the settings ask for: of this kvstore alone, or shared by all that use a Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from pagemesh.kvstore.changes import ChangeLog
from pagemesh.kvstore.members import Members
from pagemesh.kvstore.membership import LocalMembership, Membership

if TYPE_CHECKING:
    from pagemesh.kvstore.redis_client import RedisStore

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
    from pagemesh.kvstore.roster_keeper import RosterKeeper
    from pagemesh.kvstore.shared_membership import SharedMembership

    # Its workers are hardly ever gone because a replica is.
    patience = members.silence_limit + MOVING_TIME
    # The log and the replica are gone with this process, so one name does for both.
    roster = RedisRoster(store, log.log_id, patience)
    membership = SharedMembership(members, roster, clock, patience)
    keeper = RosterKeeper(store, roster, membership, members, log, period)
    await keeper.start()
    keeping = asyncio.create_task(keeper.run(), name="roster")
    resources.callback(keeping.cancel)
    return membership
