"""Whether a Redis is one that an index can be kept in, at the start and whenever it comes back."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, NoPermissionError

from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.kvstore.redis_client import RedisStore

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
