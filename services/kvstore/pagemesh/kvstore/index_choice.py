"""The index that the settings ask for. What speaks to Redis is imported only for one: that takes its time."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from pagemesh.config import KvStoreConfig
from pagemesh.errors import UnavailableError
from pagemesh.kvstore.index import BlockIndex
from pagemesh.kvstore.instrumented_index import InstrumentedIndex
from pagemesh.kvstore.memory_index import MemoryIndex
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
    from pagemesh.kvstore.redis_client import RedisStore
    from pagemesh.kvstore.redis_server import inspect_server

    store = RedisStore(config.index, metrics)
    resources.push_async_callback(store.close)
    try:
        await inspect_server(store)
    except UnavailableError as error:
        _log.warning("index_waits_for_store", index=store.address, error=error.message)
    return store


def make_index(config: KvStoreConfig, store: RedisStore | None, metrics: Metrics) -> BlockIndex:
    """In memory, or on the server."""
    inner: BlockIndex
    if store is None:
        inner = MemoryIndex(max_blocks=config.index_max_blocks)
    else:
        from pagemesh.kvstore.redis_index import RedisIndex

        inner = RedisIndex(store, max_blocks=config.index_max_blocks)
    return InstrumentedIndex(inner, metrics)
