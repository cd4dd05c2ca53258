"""The connection to Redis or Valkey that a kvstore's index and its roster share, and whether the server is fit for it.

It knows no keys. Every command has a deadline, and while Redis is away commands fail at once: whoever asks
the kvstore must not wait for a server that is gone. Whether an index can be kept in a server is asked at the start and
whenever it comes back.

Each call of the index on Redis is one Lua script or several, each of which happens as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import resources
from types import TracebackType
from typing import Any, Self

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from pagemesh.config.connections import without_password
from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import kvstore as declared

_log = structlog.get_logger(__name__)

COMMAND_TIMEOUT = 0.5
"""Seconds for one command, connecting included; a Redis that takes longer counts as away.

Time in which this process does not get to look at the answer (it parses a request of 16 MB, or the machine is
busy) is not counted: it says nothing about Redis.
"""

_NUM_PARTS = 10
"""Of a deadline. One that is over a part too late is not charged: the event loop was held up."""

_MAX_LATE_PARTS = 4 * _NUM_PARTS
"""Then they are charged all the same: an end there must be."""

MAX_CONNECTIONS = 32
"""Commands at the same time; more of them wait within their deadlines."""

# A server that answers with these cannot be written, which is as good as gone: of some redis-py makes classes, of
# others the first word tells (it cannot save, has lost its copies or its master, runs a script without end). Any
# other refusal of a command is a bug here, and must not be taken for an outage.
_UNUSABLE = (OutOfMemoryError, ReadOnlyError, NoPermissionError)
_UNUSABLE_CODES = ("MISCONF", "NOREPLICAS", "MASTERDOWN", "BUSY")


class RedisStore:
    """One server. Belongs to one event loop; close it when done.

    Counts as answering until a command fails; from then on `answering` refuses at once, and whoever
    looks after the server (`probing`) says when it is back (`set_answers`).
    """

    def __init__(self, url: str, metrics: Metrics, timeout: float = COMMAND_TIMEOUT) -> None:
        """`url` is one that --index may be; ConfigError for one that cannot be read. Connects on first use."""
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=MAX_CONNECTIONS,
                timeout=None,
                # The deadline is around the whole command; a retry would only use it up.
                socket_timeout=None,
                socket_connect_timeout=None,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError as error:
            raise ConfigError(
                f"--index is {without_password(url)!r}, which cannot be read: {error}"
            ) from error
        self.redis = Redis(connection_pool=pool)
        facts = {"host": "localhost", "port": 6379} | pool.connection_kwargs
        self._address = str(facts.get("path") or "{host}:{port}".format(**facts))
        self._timeout = timeout
        self._answers = True
        self._on_away: list[Callable[[], None]] = []
        self._gauge = metrics.gauge(declared.INDEX_STORE_UP)
        self._gauge.set(1)

    @property
    def answers(self) -> bool:
        """Whether commands are let through."""
        return self._answers

    @property
    def address(self) -> str:
        """host:port, or the path of a socket; without a password that the URL may have."""
        return self._address

    def on_away(self, listener: Callable[[], None]) -> None:
        """Have `listener` called at the moment when the server stops answering."""
        self._on_away.append(listener)

    def answering(self, extra: float = 0.0) -> _Deadline:
        """`async with` around commands: UnavailableError at once while the server is away, and when these
        are not answered in time. `extra` seconds are added for commands that wait on purpose.
        """
        self.require()
        return self.probing(extra)

    def probing(self, extra: float = 0.0) -> _Deadline:
        """Likewise, but lets commands through while the server is away, to find out whether it is back."""
        return _Deadline(self, self._timeout + extra)

    def require(self) -> None:
        """Raise UnavailableError while the server is away."""
        if not self._answers:
            raise self.unavailable()

    def unavailable(self) -> UnavailableError:
        """That the server does not answer."""
        return UnavailableError(f"Redis at {self._address} does not answer", reason="STORE_AWAY")

    def set_answers(self) -> None:
        """The server is back; says so once."""
        if not self._answers:
            self._answers = True
            self._gauge.set(1)
            _log.info("store_back", address=self._address)

    def set_away(self, error: Exception) -> None:
        """The server does not answer; says so once."""
        if self._answers:
            self._answers = False
            self._gauge.set(0)
            # What the library's errors show of themselves leaves out what the server said.
            _log.warning(
                "store_away", address=self._address, error=f"{type(error).__name__}: {error}"
            )
            for listener in self._on_away:
                listener()

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self.redis.aclose(close_connection_pool=True)


class _Deadline:
    """Commands of one `async with`: their deadline, and what their failure means."""

    def __init__(self, store: RedisStore, seconds: float) -> None:
        self._store = store
        self._timeout = asyncio.timeout(None)
        self._part = seconds / _NUM_PARTS
        self._num_left = _NUM_PARTS
        self._num_late = 0

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._part, self._tick)
        return self

    def _tick(self) -> None:
        is_late = self._loop.time() - self._timer.when() > self._part
        if is_late and self._num_late < _MAX_LATE_PARTS:
            self._num_late += 1
        else:
            self._num_left -= 1
        if self._num_left:
            self._timer = self._loop.call_later(self._part, self._tick)
        else:
            # Behind the answers that this turn of the loop has found.
            self._timeout.reschedule(self._loop.time())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as late:
            self._store.set_away(late)
            raise self._store.unavailable() from late
        if not isinstance(error, (RedisError, OSError)):
            return
        if isinstance(error, ResponseError) and not _is_unusable(error):
            return
        self._store.set_away(error)
        raise self._store.unavailable() from error


def _is_unusable(error: ResponseError) -> bool:
    return isinstance(error, _UNUSABLE) or str(error).partition(" ")[0] in _UNUSABLE_CODES


_PRELUDES = {
    "store": ("places", "masks", "owners", "clock", "evict"),
    "remove": ("places", "masks", "owners"),
    "lookup": ("places", "clock"),
    "count_held": ("places", "masks", "owners"),
    "held": ("places", "masks", "owners"),
    "add": ("places", "slots"),
    "drop": ("places", "slots"),
    "clear": ("places", "slots"),
    "facts": ("places", "slots"),
    "sweep": ("places", "masks", "slots", "clock", "evict"),
    "usage": ("places",),
}
"""What comes in front of each script."""

NAME_BITS_FOR_BUCKETS = 24
"""Buckets are told by the first bits of a block hash, so many at most."""


TURNS = 2
"""Scripts about the blocks of workers at once. When all workers send snapshots, those that wait must not wait in
Redis: lookups would wait behind them, and the last of them until Redis seems to be away."""


class RedisScripts:
    """The scripts of one index. They use keys that they do not announce, which a Redis cluster refuses."""

    def __init__(self, store: RedisStore, prefix: str, bucket_bits: int) -> None:
        """All keys begin with `prefix`; blocks are spread over 2 ** `bucket_bits` hashes."""
        divisor = 2 ** (NAME_BITS_FOR_BUCKETS - bucket_bits)
        settings = f"local prefix, divisor = '{prefix}', {divisor}"
        self._store = store
        self.turns = asyncio.Semaphore(TURNS)
        """Held by scripts about many blocks, in the order in which they ask for it."""
        self._scripts = {
            name: store.redis.register_script(
                "\n".join((settings, *(read_script("scripts", each) for each in (*preludes, name))))
            )
            for name, preludes in _PRELUDES.items()
        }

    def require(self) -> None:
        """Raise UnavailableError while the server is away."""
        self._store.require()

    async def run(self, name: str, *arguments: bytes | str | int) -> Any:
        """A script's answer. Raises UnavailableError when there is none in time."""
        async with self._store.answering():
            return await self._scripts[name](args=arguments)

    async def run_in_turn(self, name: str, *arguments: bytes | str | int) -> Any:
        """Likewise, for scripts about the blocks of a worker: few are under way at once, in the order of the calls."""
        async with self.turns:
            return await self.run(name, *arguments)


def read_script(folder: str, name: str) -> str:
    """The text of a script that comes with the package."""
    return resources.files("pagemesh.kvstore").joinpath(folder, f"{name}.lua").read_text("utf-8")


LEAST_VERSION = 7
"""Of Redis; every Valkey counts as one of 7."""


async def inspect_server(store: RedisStore) -> None:
    """Ask the server what it is, also while it counts as away.

    Raises UnavailableError when it does not answer, ConfigError when it cannot be used: too old, a part of a
    cluster (scripts could not reach all keys), a copy that cannot be written, one that throws keys away when
    its memory is full, or no access.
    """
    try:
        async with store.probing():
            facts = await store.redis.info()
    except UnavailableError as error:
        if isinstance(error.__cause__, AuthenticationError | NoPermissionError):
            raise _unusable(store, f"which refuses access: {error.__cause__}") from error
        raise
    version = str(facts.get("redis_version", "0"))
    if int(version.partition(".")[0]) < LEAST_VERSION:
        raise _unusable(store, f"which is Redis {version}, but must be at least {LEAST_VERSION}")
    if facts.get("cluster_enabled"):
        raise _unusable(store, "which is a part of a cluster, but must be a server by itself")
    if facts.get("role") not in (None, "master"):
        raise _unusable(store, "which is a copy of another server, and cannot be written")
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory") and policy != "noeviction":
        # Without its list of workers, blocks would be taken for those of others.
        raise _unusable(
            store,
            f"which throws keys away when it is full: maxmemory-policy is {policy!r}, but must be 'noeviction'",
        )


def _unusable(store: RedisStore, what: str) -> ConfigError:
    return ConfigError(f"--index names the server at {store.address}, {what}")
