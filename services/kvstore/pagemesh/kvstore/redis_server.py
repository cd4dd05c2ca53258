"""Whether a Redis is one that an index can be kept in, at the start and whenever it comes back."""

from __future__ import annotations

import structlog
from redis.exceptions import AuthenticationError

from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.kvstore.redis_client import RedisStore

_log = structlog.get_logger(__name__)

LEAST_VERSION = 7
"""Of Redis; every Valkey counts as one of 7."""


async def inspect_server(store: RedisStore) -> None:
    """Ask the server what it is, also while it counts as away.

    Raises UnavailableError when it does not answer, ConfigError when it cannot be used: too old, a part of a
    cluster (scripts could not reach all keys), a copy that cannot be written, or no access. One that may
    throw away keys when its memory is full is warned of in the log.
    """
    try:
        async with store.probing():
            facts = await store.redis.info()
    except UnavailableError as error:
        if isinstance(error.__cause__, AuthenticationError):
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
        _log.warning("store_may_lose_keys", address=store.address, maxmemory_policy=policy)


def _unusable(store: RedisStore, what: str) -> ConfigError:
    return ConfigError(f"--index names the server at {store.address}, {what}")
