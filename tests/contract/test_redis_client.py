"""What a kvstore gets of its Redis while that is there, slow, gone and back."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.kvstore.redis_client import RedisStore
from pagemesh.telemetry.metrics import Metrics
from tests.support.valkey import Valkey


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest_asyncio.fixture
async def store(valkey: Valkey, metrics: Metrics) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey.url, metrics, timeout=0.2)
    yield store
    await store.close()


def is_up(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("pagemesh:index_store_up")


async def ask(store: RedisStore) -> object:
    async with store.answering():
        return await store.redis.ping()


async def test_commands_go_through_while_it_answers(store: RedisStore, metrics: Metrics) -> None:
    assert await ask(store) is True
    assert (store.answers, is_up(metrics)) == (True, 1.0)


async def test_a_server_that_froze_is_away_after_one_deadline_and_refused_at_once_from_then_on(
    valkey: Valkey, store: RedisStore, metrics: Metrics
) -> None:
    told: list[str] = []
    store.on_away(lambda: told.append("away"))
    loop = asyncio.get_running_loop()
    await ask(store)
    valkey.freeze()
    try:
        with capture_logs() as logs, pytest.raises(UnavailableError) as refused:
            await ask(store)
        assert refused.value.reason == "STORE_AWAY"
        assert [line["event"] for line in logs] == ["store_away"]
        assert (told, is_up(metrics)) == (["away"], 0.0)
        began_at = loop.time()
        for _ in range(20):
            with pytest.raises(UnavailableError):
                await ask(store)
        # One deadline alone would be twenty times as long together.
        assert loop.time() - began_at < 1.0
        with capture_logs() as logs, pytest.raises(UnavailableError):
            async with store.probing():
                await store.redis.ping()
        assert (logs, told) == ([], ["away"])
    finally:
        valkey.thaw()
    async with store.probing():
        await store.redis.ping()
    with capture_logs() as logs:
        store.set_answers()
        store.set_answers()
    assert [line["event"] for line in logs] == ["store_back"]
    assert is_up(metrics) == 1.0
    assert await ask(store) is True


async def test_a_process_that_is_held_up_itself_does_not_take_the_server_for_gone(
    store: RedisStore,
) -> None:
    await ask(store)
    answer = asyncio.create_task(ask(store))
    await asyncio.sleep(0.01)
    time.sleep(0.5)  # noqa: ASYNC251 - as parsing 16 MB would
    assert await answer is True
    async with store.answering():
        pinging = asyncio.ensure_future(store.redis.ping())
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251
        assert await pinging is True
    assert store.answers


@asynccontextmanager
async def held_up(seconds: float) -> AsyncIterator[None]:
    """Meanwhile each turn of the loop takes so long, as on a machine that has too much to do."""
    is_over = False

    def hold() -> None:
        if not is_over:
            time.sleep(seconds)
            asyncio.get_running_loop().call_soon(hold)

    hold()
    try:
        yield
    finally:
        is_over = True


async def test_nor_does_one_that_is_held_up_again_and_again(store: RedisStore) -> None:
    scripts = [store.redis.register_script(f"return ARGV[{number}]") for number in range(1, 7)]
    async with held_up(0.05), store.answering():
        # It connects, is told that there is no such script, and loads it: many turns, each with an answer in time.
        assert [await script(args=[*"abcdef"]) for script in scripts] == [
            *map(str.encode, "abcdef")
        ]
    assert store.answers


async def test_however_much_it_is_held_up_a_server_that_froze_is_away_in_time(
    valkey: Valkey, store: RedisStore
) -> None:
    await ask(store)
    valkey.freeze()
    try:
        began = time.monotonic()
        async with held_up(0.05):
            with pytest.raises(UnavailableError):
                await ask(store)
        # Fifty parts at most, each of two turns.
        assert time.monotonic() - began < 10.0
    finally:
        valkey.thaw()


async def test_a_server_that_was_killed_is_away_and_can_be_used_again_once_it_is_back(
    valkey: Valkey, store: RedisStore
) -> None:
    await ask(store)
    valkey.kill()
    with pytest.raises(UnavailableError):
        await ask(store)
    assert not store.answers
    valkey.start()
    async with store.probing():
        await store.redis.ping()
    store.set_answers()
    assert await ask(store) is True


async def test_a_command_that_is_wrong_is_a_bug_and_no_outage(store: RedisStore) -> None:
    with pytest.raises(ResponseError):
        async with store.answering():
            await store.redis.eval("return redis.call('no-such-command')", 0)
    assert store.answers


async def test_a_server_that_is_full_counts_as_away(store: RedisStore) -> None:
    await store.redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(UnavailableError):
            async with store.answering():
                await store.redis.set("key", "value")
        assert not store.answers
    finally:
        await store.redis.config_set("maxmemory", "0")


async def test_a_server_that_lacks_the_copies_it_must_have_counts_as_away(
    store: RedisStore,
) -> None:
    await store.redis.config_set("min-replicas-to-write", "1")
    try:
        with pytest.raises(UnavailableError):
            async with store.answering():
                await store.redis.eval("return redis.call('set', KEYS[1], 1)", 1, "key")
        assert not store.answers
    finally:
        await store.redis.config_set("min-replicas-to-write", "0")


async def test_a_server_that_cannot_save_counts_as_away(store: RedisStore) -> None:
    settings = await store.redis.config_get("dir", "dbfilename")
    taken = Path(str(settings["dir"]), str(settings["dbfilename"]))
    (taken / "a folder cannot be replaced by a file").mkdir(parents=True)
    await store.redis.config_set("save", "3600 1")
    try:
        await store.redis.bgsave()
        async with asyncio.timeout(10.0):
            status = ""
            while status != "err":
                await asyncio.sleep(0.01)
                status = (await store.redis.info())["rdb_last_bgsave_status"]
        with pytest.raises(UnavailableError):
            async with store.answering():
                await store.redis.set("key", "value")
        assert not store.answers
    finally:
        await store.redis.config_set("save", "")
        shutil.rmtree(taken)


async def test_a_caller_that_gives_up_says_nothing_about_the_server(
    valkey: Valkey, store: RedisStore
) -> None:
    await ask(store)
    valkey.freeze()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ask(store)
        assert store.answers
    finally:
        valkey.thaw()
    assert await ask(store) is True


def test_an_address_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--index is 'http://x', which cannot be read"):
        RedisStore("http://x", Metrics())
