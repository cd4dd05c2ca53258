"""The kvstore with its index on a real Redis against a plain model, as tests/unit/kvstore has it in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pagemesh.kvstore.redis_client import RedisStore
from pagemesh.kvstore.redis_index import RedisIndex
from pagemesh.telemetry.metrics import Metrics
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import Store
from tests.unit.kvstore.test_catalog_stateful import KvStoreMachine

Result = TypeVar("Result")


async def empty(redis: RedisStore) -> None:
    await redis.redis.flushdb()


def test_lost_repeated_reordered_and_stale_events(valkey: Valkey) -> None:
    with asyncio.Runner() as runner:
        redis = RedisStore(valkey.url, Metrics(), timeout=5.0)

        class Machine(KvStoreMachine):
            def __init__(self) -> None:
                runner.run(empty(redis))
                # Few buckets: there are as few blocks.
                super().__init__(Store(index=RedisIndex(redis, bucket_bits=2)))
                self.reopen = lambda index: RedisIndex(redis, bucket_bits=2)

            def do(self, call: Coroutine[Any, Any, Result]) -> Result:
                return runner.run(call)

        limits = settings(max_examples=20, stateful_step_count=30, derandomize=True)
        try:
            run_state_machine_as_test(Machine, settings=limits)
        finally:
            runner.run(redis.close())
