"""The members of all replicas in Redis: who they are, which replica they publish to, how busy they are.

Each call is one script, which happens as a whole. The clock that judges replicas is Redis's own. What is kept
is bounded by the workers and replicas that there are: news only wake whoever waits for them, and the state
itself is read, so that none can be missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pagemesh.errors import FailedPreconditionError
from pagemesh.kvstore.redis_client import RedisStore, read_script
from pagemesh.kvstore.registration import duplicate_worker, layout_mismatch, mismatch, stale_epoch
from pagemesh.v1 import types_pb2

PREFIX = "pagemesh:roster:"
_FOLDER = "roster_scripts"

LOADS_PER_CALL = 256

_SCRIPTS = ("beat", "claim", "release", "tell", "read")


class Claim(NamedTuple):
    """A worker that publishes to some replica, as Redis has it."""

    owner: str
    """The replica."""
    info: bytes
    """WorkerInfo, packed."""


class Reading(NamedTuple):
    """What changed since another reading."""

    generation: str
    """Another one where Redis has lost what it held."""
    joins: str
    """Version of the membership."""
    told: str
    """Version of the loads."""
    workers: dict[str, Claim] | None
    """All workers of all replicas, this one included; None when that is the same as before."""
    loads: dict[str, bytes]
    """WorkerLoad, packed, of those whose load was told since."""


NOTHING_HELD = "0"
"""Generation and version of a Redis in which nobody has claimed anything yet."""

NOTHING_READ = Reading("", "unread", "0", None, {})


class RedisRoster:
    """Seen by one replica. All methods raise UnavailableError while Redis does not answer."""

    def __init__(self, store: RedisStore, replica: str, patience: float) -> None:
        """`replica` is a name that no other one has; it is gone after `patience` seconds without a beat."""
        self.replica = replica
        self._store = store
        self._limit_ms = round(patience * 1000)
        self._news = "0-0"
        common = f"local prefix = '{PREFIX}'\n{read_script(_FOLDER, 'common')}\n"
        self._scripts = {
            name: store.redis.register_script(common + read_script(_FOLDER, name))
            for name in _SCRIPTS
        }

    async def beat(self, period: float) -> None:
        """Say that this replica is alive, every `period` seconds.

        Goes through while Redis counts as away. Workers of replicas that are silent for too long are
        forgotten, unless nobody's beats came through.
        """
        async with self._store.probing():
            await self._scripts["beat"](
                args=[self.replica, self._limit_ms, round(2 * period * 1000)]
            )

    async def claim(self, info: types_pb2.WorkerInfo, *, takes: bool) -> bool:
        """Make an incarnation a member that publishes here; False if it is to stay where it is.

        One that is a member at another replica which is alive is taken from it if `takes`. Raises
        FailedPreconditionError as `Members.register`.
        """
        verdict, *in_the_way = await self._run(
            "claim",
            self.replica,
            self._limit_ms,
            info.worker_id,
            _digits(info.epoch),
            pack(info),
            info.model_name,
            info.model_fingerprint,
            info.kv_layout.SerializeToString(deterministic=True),
            int(takes),
        )
        if verdict in (b"ok", b"elsewhere"):
            return bool(verdict == b"ok")
        raise _refusal(verdict, info, in_the_way[0])

    async def release(self, worker_id: str, epoch: int) -> Claim | None:
        """An incarnation no longer publishes here; where it is by now, if it is at another replica."""
        answer = await self._run("release", self.replica, worker_id, _digits(epoch))
        return Claim(answer[0].decode(), answer[1]) if answer else None

    async def tell(self, loads: Iterable[tuple[str, types_pb2.WorkerLoad]]) -> None:
        """Loads of workers that publish here; those of others are passed over."""
        flat = [part for worker_id, load in loads for part in (worker_id, load.SerializeToString())]
        for start in range(0, len(flat), 2 * LOADS_PER_CALL):
            await self._run("tell", self.replica, *flat[start : start + 2 * LOADS_PER_CALL])

    async def read(self, since: Reading) -> Reading:
        """What changed since an earlier reading; all there is since `NOTHING_READ`."""
        generation, joins, told, owners, infos, loads = await self._run(
            "read", since.joins, since.told
        )
        workers = None
        # One in which there is nobody looks the same before anybody came and after all were lost.
        if joins.decode() != since.joins or joins.decode() == NOTHING_HELD:
            packed = _pairs(infos)
            workers = {
                worker_id: Claim(owner.decode(), packed[worker_id])
                for worker_id, owner in _pairs(owners).items()
            }
        versions = generation.decode(), joins.decode(), told.decode()
        return Reading(*versions, workers, dict(_pairs(loads)))

    async def wait_for_news(self, longest: float) -> None:
        """Wait until another replica said something since the last call, at most `longest` seconds."""
        async with self._store.answering(longest):
            key = f"{PREFIX}news"
            answer: Any = await self._store.redis.xread(
                {key: self._news}, count=1, block=round(longest * 1000)
            )
        for _, entries in answer or ():
            self._news = entries[-1][0]

    async def _run(self, name: str, *arguments: bytes | str | int) -> Any:
        async with self._store.answering():
            return await self._scripts[name](args=arguments)


def pack(info: types_pb2.WorkerInfo) -> bytes:
    """A WorkerInfo as bytes that are the same for equal ones."""
    return info.SerializeToString(deterministic=True)


def _refusal(
    verdict: bytes, info: types_pb2.WorkerInfo, in_the_way: bytes
) -> FailedPreconditionError:
    if verdict == b"stale":
        return stale_epoch(info.worker_id, info.epoch, int(in_the_way))
    other = types_pb2.WorkerInfo.FromString(in_the_way)
    if verdict == b"duplicate":
        return duplicate_worker(info, other)
    return mismatch(info, other) or layout_mismatch(info, other)


def _digits(epoch: int) -> str:
    """As text that compares as the number does: Lua's numbers have 53 bits, an epoch 64."""
    return f"{epoch:020d}"


def _pairs(flat: list[bytes]) -> Mapping[str, bytes]:
    return {key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}
