"""Whether the Redis or Valkey that --index names can be used, before anything is started."""

from __future__ import annotations

import asyncio
import logging

import structlog

from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.kvstore.redis_client import RedisStore, inspect_server
from pagemesh.telemetry.metrics import Metrics


def require_store(index: str) -> None:
    """Raise ConfigError unless the server that `index` names answers, and an index can be kept in it.

    A kvstore by itself waits for its server. Of several, each would know its own workers alone until then, and a
    mesh with some of its workers, or none, looks as if it were whole.
    """
    # The sentence is for people; parts have logs of their own.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(_inspect(index))


async def _inspect(index: str) -> None:
    store = RedisStore(index, Metrics())
    try:
        await inspect_server(store)
    except UnavailableError as error:
        raise ConfigError(
            f"--index names the server at {store.address}, which does not answer"
        ) from error
    finally:
        await store.close()
