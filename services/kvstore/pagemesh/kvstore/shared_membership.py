"""Who may join and who has left, decided together with the other replicas, through Redis.

Redis has the truth about which replica a worker publishes to. While it is away every replica decides for the
workers that publish to it, remembers the others, and makes up for it when it is back: it claims its own again,
and whoever is not claimed again by then has some time left to be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from pagemesh.errors import FailedPreconditionError, UnavailableError
from pagemesh.kvstore.members import Member, Members, PublishStream
from pagemesh.kvstore.redis_roster import NOTHING_HELD, NOTHING_READ, Claim, RedisRoster, pack
from pagemesh.kvstore.registration import check_registration
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)


class SharedMembership:
    """A `Membership`; and what others decided, put into `Members`. Belongs to one event loop."""

    def __init__(
        self,
        members: Members,
        roster: RedisRoster,
        clock: Callable[[], float],
        patience: float,
    ) -> None:
        """Workers that nobody claims are kept for `patience` seconds after Redis lost what it held."""
        self._members = members
        self._roster = roster
        self._clock = clock
        self._patience = patience
        self._read = NOTHING_READ
        # What Redis said of the workers, so that only what changed is unpacked.
        self._claims: dict[str, Claim] = {}
        # Workers of other replicas that were known before Redis lost what it held, and have not been claimed
        # since; and until when they are kept all the same.
        self._doubtful: set[str] = set()
        self._keep_until: float | None = None
        self._on_lost: list[Callable[[str], Awaitable[None]]] = []
        # What is decided, and what was read, is put into effect before anything else is.
        self._turn = asyncio.Lock()

    async def join(self, info: types_pb2.WorkerInfo) -> tuple[Member, bool]:
        members = self._members
        async with self._turn:
            check_registration(info, (m.info for m in (*members, *members.elsewhere)))
            # While Redis is away, what is known here has to do; `restore` claims it later.
            with contextlib.suppress(UnavailableError):
                await self._roster.claim(info, takes=True)
            return members.register(info)

    async def leave(self, stream: PublishStream) -> bool:
        """See `Membership`. A worker that another replica has taken is not dropped."""
        async with self._turn:
            member = self._members.get(stream.worker_id)
            if member is None or member.stream is not stream:
                return False
            await self._release(member)
            return True

    async def expire(self, worker_id: str) -> bool:
        """See `Membership`. A worker that another replica has taken is not dropped."""
        async with self._turn:
            member = self._members.get(worker_id)
            if member is None or worker_id not in self._members.silent():
                return False
            await self._release(member)
            return True

    def on_lost(self, listener: Callable[[str], Awaitable[None]]) -> None:
        self._on_lost.append(listener)

    async def restore(self) -> None:
        """Make Redis, which may have lost what it held, know the members of this replica, and read the others.

        Raises UnavailableError when it is away again; then this has to be done once more.
        """
        async with self._turn:
            self._doubt_all()
            self._read = NOTHING_READ
            await self._refresh()
            await self._roster.tell(
                [(m.info.worker_id, m.load) for m in self._members if m.load is not None]
            )

    async def refresh(self) -> None:
        """Put into effect what other replicas decided and told since the last time.

        Raises UnavailableError when Redis does not answer.
        """
        async with self._turn:
            await self._refresh()

    async def _release(self, member: Member) -> None:
        """End a membership here, where it may have gone on elsewhere."""
        worker_id = member.info.worker_id
        taken: Claim | None = None
        # While Redis is away nobody can know; `restore` releases it later.
        try:
            with contextlib.suppress(UnavailableError):
                taken = await self._roster.release(worker_id, member.info.epoch)
        except BaseException:
            # Whatever became of that, nobody speaks for the worker. The next reading makes up for it.
            self._read = self._read._replace(joins=NOTHING_READ.joins)
            self._members.drop(worker_id)
            raise
        if taken is None or not await self._hand_over(taken):
            self._members.drop(worker_id)

    async def _refresh(self) -> None:
        since = self._read
        if self._keep_until is not None and self._clock() >= self._keep_until:
            # Whoever is still in doubt has to go, though nothing has changed.
            self._keep_until = None
            self._doubtful.clear()
            since = since._replace(joins=NOTHING_READ.joins)
        reading = await self._roster.read(since)
        if since.generation not in ("", NOTHING_HELD, reading.generation):
            # Redis has lost what it held: that nobody is in it says nothing.
            self._doubt_all()
        if reading.workers is not None:
            await self._reconcile(reading.workers)
        for worker_id, load in reading.loads.items():
            self._members.elsewhere.report_load(worker_id, types_pb2.WorkerLoad.FromString(load))
        self._read = reading._replace(workers=None, loads={})

    async def _reconcile(self, claims: dict[str, Claim]) -> None:
        """Make what is known here agree with Redis, and Redis with what only this replica can know."""
        own = self._roster.replica
        for worker_id, claim in claims.items():
            member = self._members.get(worker_id)
            if claim.owner != own:
                await self._see(worker_id, claim, member)
            elif member is None:
                # It left while Redis was away, or its release was lost.
                epoch = types_pb2.WorkerInfo.FromString(claim.info).epoch
                await self._roster.release(worker_id, epoch)
        for member in list(self._members):
            if claims.get(member.info.worker_id) != Claim(own, pack(member.info)):
                await self._claim_again(member)
        self._claims = claims
        self._doubtful.difference_update(claims)
        for worker_id in [remote.info.worker_id for remote in self._members.elsewhere]:
            if worker_id not in claims and worker_id not in self._doubtful:
                _log.info("worker_left_elsewhere", worker_id=worker_id)
                self._members.elsewhere.drop(worker_id)

    def _doubt_all(self) -> None:
        """That somebody is not in Redis says nothing, for some time."""
        self._doubtful.update(remote.info.worker_id for remote in self._members.elsewhere)
        self._keep_until = self._clock() + self._patience

    async def _see(self, worker_id: str, claim: Claim, member: Member | None) -> None:
        elsewhere = self._members.elsewhere
        if member is not None:
            await self._hand_over(claim)
        elif self._claims.get(worker_id) != claim or elsewhere.get(worker_id) is None:
            elsewhere.see(types_pb2.WorkerInfo.FromString(claim.info), claim.owner)

    async def _hand_over(self, claim: Claim) -> bool:
        """A member is at another replica; False if what is there is only an older incarnation."""
        info = types_pb2.WorkerInfo.FromString(claim.info)
        member = self._members.get(info.worker_id)
        if member is None or info.epoch < member.info.epoch:
            return False
        _log.info("worker_moved", worker_id=info.worker_id, replica=claim.owner)
        self._members.hand_over(info.worker_id, claim.owner)
        self._members.elsewhere.see(info, claim.owner)
        await self._lose(info.worker_id)
        return True

    async def _claim_again(self, member: Member) -> None:
        """Tell Redis of a member that it does not know to be here."""
        try:
            if await self._roster.claim(member.info, takes=False) and member.load is not None:
                await self._roster.tell([(member.info.worker_id, member.load)])
        except FailedPreconditionError as error:
            # It joined while Redis was away, beside others that it would not have been let in with. Its
            # stream is refused from now on, and the worker told why when it registers again.
            _log.warning("worker_refused_late", reason=error.reason, error=error.message)
            self._members.drop(member.info.worker_id)
            await self._lose(member.info.worker_id)

    async def _lose(self, worker_id: str) -> None:
        for listener in self._on_lost:
            await listener(worker_id)
