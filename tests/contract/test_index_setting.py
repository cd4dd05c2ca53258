"""A kvstore whose --index names a Redis: one that can be used, one that cannot, and one that is late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from pagemesh.config import KvStoreConfig
from pagemesh.errors import ConfigError
from pagemesh.kvstore.redis_client import RedisStore, inspect_server
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.contract.kvstore_harness import (
    DEADLINE_S,
    PublishingWorker,
    connected,
    index_becomes,
    running_kvstore,
)
from tests.support.ports import free_port
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_worker


async def test_a_worker_publishes_to_a_kvstore_with_redis(valkey: Valkey) -> None:
    async with running_kvstore(index=valkey.url) as address, connected(address) as stub:
        async with PublishingWorker(address, make_worker("a")) as worker:
            await worker.generate(range(20))
            assert len(worker.cached) == 5
            await index_becomes(stub, {"a": worker.cached})
        await index_becomes(stub, {})


async def test_a_kvstore_starts_before_its_redis_and_uses_it_once_it_is_there() -> None:
    late = Valkey()
    with capture_logs() as logs:
        async with (
            running_kvstore(index=late.url, heartbeat_interval=0.1) as address,
            connected(address) as stub,
        ):
            assert "index_waits_for_store" in [line["event"] for line in logs]
            lookup = kvstore_pb2.LookupRequest(block_hashes=bytes(16))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Lookup(lookup, timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            late.start()
            try:
                await until_answered(stub, lookup)
            finally:
                late.kill()


async def test_connections_are_closed_when_nobody_asks_for_one_any_more(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled while a connection is closed would cancel whoever else waits for that."""
    close, seen = RedisStore.close, []

    async def note(store: RedisStore) -> None:
        seen.append({task.get_name() for task in asyncio.all_tasks()})
        await close(store)

    monkeypatch.setattr(RedisStore, "close", note)
    async with running_kvstore(index=valkey.url, heartbeat_interval=0.1):
        names = {task.get_name() for task in asyncio.all_tasks()}
    assert {"housekeeping", "roster", "roster-beat"} <= names
    (left,) = seen
    assert not any(name.startswith(("housekeeping", "roster")) for name in left)


async def until_answered(
    stub: kvstore_pb2_grpc.KvStoreAsyncStub, lookup: kvstore_pb2.LookupRequest
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await stub.Lookup(lookup, timeout=5)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                await asyncio.sleep(0.01)
            else:
                return


@pytest.mark.parametrize("index", ["redis", "http://127.0.0.1:6379", ""])
def test_an_index_that_is_none_is_refused(index: str) -> None:
    with pytest.raises(ConfigError, match=r"--index is '.*', but must be memory, redis://host"):
        KvStoreConfig(index=index)


def test_less_than_no_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="--index-max-blocks is -1, but must be 0 or more"):
        KvStoreConfig(index_max_blocks=-1)


async def test_a_port_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="--index is 'redis://h:port/0'"):
        async with running_kvstore(index="redis://h:port/0"):
            pass


async def test_a_server_that_refuses_access_is_refused(valkey: Valkey) -> None:
    admin = Redis.from_url(valkey.url)
    await admin.config_set("requirepass", "secret")
    try:
        with pytest.raises(ConfigError, match=r"--index names the server at .*, which refuses"):
            async with running_kvstore(index=valkey.url):
                pass
        with_password = valkey.url.replace("redis://", "redis://:secret@")
        async with running_kvstore(index=with_password):
            pass
    finally:
        await admin.config_set("requirepass", "")
        await admin.aclose()


async def test_a_copy_of_another_server_is_refused(valkey: Valkey) -> None:
    admin = Redis.from_url(valkey.url)
    await admin.replicaof("127.0.0.1", free_port())
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            async with running_kvstore(index=valkey.url):
                pass
    finally:
        await admin.replicaof("NO", "ONE")
        await admin.aclose()


async def test_a_server_that_throws_keys_away_is_refused(valkey: Valkey) -> None:
    admin = Redis.from_url(valkey.url)
    await admin.config_set("maxmemory", "1gb")
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="maxmemory-policy is 'allkeys-lru', but must be"):
            async with running_kvstore(index=valkey.url):
                pass
    finally:
        await admin.config_set("maxmemory-policy", "noeviction")
        await admin.config_set("maxmemory", "0")
        await admin.aclose()


async def test_a_user_who_may_not_ask_what_the_server_is_is_refused(valkey: Valkey) -> None:
    admin = Redis.from_url(valkey.url)
    await admin.acl_setuser(
        "limited",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        categories=["+@all"],
        commands=["-info"],
    )
    try:
        with pytest.raises(ConfigError, match=r"--index names the server at .*, which refuses"):
            async with running_kvstore(
                index=valkey.url.replace("redis://", "redis://limited:secret@")
            ):
                pass
    finally:
        await admin.acl_deluser("limited")
        await admin.aclose()


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ("redis_version:6.2.14", "is Redis 6.2.14, but must be at least 7"),
        ("redis_version:7.2.4\r\ncluster_enabled:1", "is a part of a cluster"),
    ],
    ids=["old", "cluster"],
)
async def test_other_servers_are_refused_for_what_they_say_they_are(
    facts: str, complaint: str
) -> None:
    async with serving_facts(facts) as url:
        store = RedisStore(url, Metrics())
        try:
            with pytest.raises(ConfigError, match=complaint):
                await inspect_server(store)
        finally:
            await store.close()


@asynccontextmanager
async def serving_facts(facts: str) -> AsyncIterator[str]:
    """A server that answers INFO with these facts, and anything else with OK; gives its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                length = await reader.readline()
                words.append((await reader.readexactly(int(length[1:]) + 2)).strip())
            is_asked = words[0] == b"INFO"
            writer.write(f"${len(facts)}\r\n{facts}\r\n".encode() if is_asked else b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"redis://{host}:{port}/0"
    finally:
        server.close()
