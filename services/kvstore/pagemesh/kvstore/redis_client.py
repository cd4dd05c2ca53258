"""The connection to Redis or Valkey that a kvstore's index and its roster share, and whether it answers.

Knows no keys. Every command has a deadline, and while Redis is away commands fail at once: whoever asks
the kvstore must not wait for a server that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from pagemesh.config.store_url import without_password
from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import index as declared

_log = structlog.get_logger(__name__)

COMMAND_TIMEOUT = 0.5
"""Seconds for one command, connecting included; a Redis that takes longer counts as away.

Time in which this process does not get to look at the answer (it parses a request of 16 MB, or the machine is
busy) is not counted: it says nothing about Redis.
"""

# Parts of a deadline. Of the time for which an event loop is held up, a deadline is charged one of them.
_NUM_PARTS = 10

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

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._part, self._tick)
        return self

    def _tick(self) -> None:
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
