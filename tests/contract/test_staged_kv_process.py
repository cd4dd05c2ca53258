"""KV of an engine whose memory its worker cannot map, as on a GPU: staged through shared buffers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from pagemesh.core.kv import KvExport
from pagemesh.engine_process import staging_channel
from pagemesh.engine_process.client import EngineProcess, RemoteEngine
from pagemesh.errors import KvIntegrityError, UnavailableError
from pagemesh.kv_memory.memory import KvMemory
from pagemesh.kv_memory.staged import DeviceMemoryName, StagedKv
from tests.contract.engine_harness import Steps, request, running, settings
from tests.support.engine_processes import engine_processes
from tests.support.kv_bytes import read_kv
from tests.support.waiting import wait_until

pytestmark = pytest.mark.costly

STAGED = "tests.support.staged_engine"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def programs_of_tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the processes that are started here."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


def staged(model: Path, program: str = STAGED) -> EngineProcess:
    return EngineProcess(settings(model), program)


async def export(engine: RemoteEngine, steps: Steps) -> KvExport:
    engine.submit(request("export", 1, hold_blocks=True))
    await wait_until(steps.ended("export"), "the export")
    return [export for step in steps.all for export in step.exports][-1]


def read_all(engine: RemoteEngine, exported: KvExport) -> bytes:
    return read_kv(engine.kv, exported.block_ids, 0, engine.info.layout.num_layers)


async def test_staged_kv_is_what_an_engine_shares_that_can_be_mapped(demo_model: Path) -> None:
    blocks, tokens = [], []
    for program, kind in ((STAGED, StagedKv), ("pagemesh.engine_process.server", KvMemory)):
        async with running(staged(demo_model, program)) as (engine, steps):
            assert type(engine.kv) is kind
            # On the event loop's own thread, too: no answer needs it.
            blocks.append(read_all(engine, await export(engine, steps)))
            engine.release("export")
            engine.submit(request("answer"))
            await wait_until(steps.ended("answer"), "the answer")
            tokens.append(steps.tokens("answer"))
    assert blocks[0] == blocks[1]
    assert any(blocks[0])
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 8


async def test_kv_that_is_written_is_what_a_later_request_finds(demo_model: Path) -> None:
    async with running(staged(demo_model)) as (engine, steps):
        exported = await export(engine, steps)
        payload = read_all(engine, exported)
        engine.submit(dataclasses.replace(request("import"), await_kv=True))
        engine.release("export")
        await wait_until(lambda: any(step.grants for step in steps.all), "the grant")
        (grant,) = [grant for step in steps.all for grant in step.grants]
        held = grant.num_held_tokens // 16
        width = len(payload) // (2 * 6 * len(exported.block_ids))
        rows = [payload[i : i + width] for i in range(0, len(payload), width)]
        num_blocks = len(exported.block_ids)
        missing = [row for i, row in enumerate(rows) if i % num_blocks >= held]
        await asyncio.to_thread(
            engine.kv.write, grant.block_ids[held:num_blocks], 0, 6, b"".join(missing)
        )
        assert read_kv(engine.kv, grant.block_ids[:num_blocks], 0, 6) == payload
        engine.finish_import("import", 80)
        await wait_until(steps.ended("import"), "the import's end")
        engine.submit(request("here"))
        await wait_until(steps.ended("here"), "the same without import")
        assert steps.tokens("import") == steps.tokens("here")


async def test_several_threads_stage_at_once(demo_model: Path) -> None:
    async with running(staged(demo_model)) as (engine, steps):
        exported = await export(engine, steps)
        expected = [read_kv(engine.kv, [block], 0, 6) for block in exported.block_ids]
        reads = [
            asyncio.to_thread(read_kv, engine.kv, [block], 0, 6)
            for _ in range(10)
            for block in exported.block_ids
        ]
        assert await asyncio.gather(*reads) == 10 * expected
        assert len(set(expected)) == len(expected)


async def test_blocks_that_are_not_there_are_refused(demo_model: Path) -> None:
    async with running(staged(demo_model)) as (engine, _):
        with pytest.raises(KvIntegrityError, match=r"block 100000 was named, but there are \d+"):
            read_kv(engine.kv, [100_000], 0, 1)
        with pytest.raises(KvIntegrityError, match="has 3 bytes, but must have"):
            engine.kv.write([0], 0, 1, b"abc")


def unreachable(engine: RemoteEngine, sender: RemoteEngine) -> bool:
    assert isinstance(engine.kv, StagedKv)
    try:
        engine.kv.copy_from(name_of(sender), [0], [0], 0, 1)
    except UnavailableError as error:
        assert error.reason == "KV_MEMORY_UNREACHABLE", error
        return True
    return False


def name_of(engine: RemoteEngine) -> DeviceMemoryName:
    assert isinstance(engine.kv, StagedKv)
    assert engine.kv.name is not None
    return engine.kv.name


async def test_an_engine_copies_blocks_out_of_the_memory_of_another_as_long_as_that_lives(
    demo_model: Path,
) -> None:
    async with (
        running(staged(demo_model)) as (sender, steps),
        running(staged(demo_model)) as (receiver, _),
    ):
        assert isinstance(sender.kv, StagedKv)
        assert isinstance(receiver.kv, StagedKv)
        exported = await export(sender, steps)
        sources, targets = exported.block_ids, exported.block_ids[::-1]
        name, (owner, _) = name_of(sender), engine_processes(STAGED)
        assert name.process_id == owner.pid
        told = sender.kv.checksum(sources, 0, 6)
        assert receiver.kv.copy_from(name, sources, targets, 0, 6) == told
        assert read_kv(receiver.kv, targets, 0, 6) == read_all(sender, exported)
        assert any(read_all(sender, exported))
        # As if the sender had given the block to somebody else.
        sender.kv.write(sources[1:2], 5, 1, bytes(sender.info.layout.num_bytes_per_layer))
        assert receiver.kv.copy_from(name, sources, targets, 0, 6) != told
        owner.kill()
        await wait_until(lambda: unreachable(receiver, sender), "memory of the dead is let go of")
        assert any(read_kv(receiver.kv, targets, 0, 6))


@pytest.fixture
async def hanging(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RemoteEngine, psutil.Process]]:
    monkeypatch.setenv("STAGING_HANGS", "1")
    async with running(staged(demo_model)) as (engine, _):
        (child,) = engine_processes(STAGED)
        yield engine, child


async def test_whoever_waits_for_a_copy_learns_at_once_that_the_engine_was_killed(
    hanging: tuple[RemoteEngine, psutil.Process],
) -> None:
    engine, child = hanging
    # One more than there are slots: the last one waits for a slot.
    reads = [
        asyncio.create_task(asyncio.to_thread(read_kv, engine.kv, [0], 0, 1)) for _ in range(3)
    ]
    write = asyncio.create_task(
        asyncio.to_thread(engine.kv.write, [0], 0, 1, bytes(engine.info.layout.num_bytes_per_layer))
    )
    done, _ = await asyncio.wait([*reads, write], timeout=0.3)
    assert not done
    child.kill()
    results = await asyncio.wait_for(
        asyncio.gather(*reads, write, return_exceptions=True), timeout=5
    )
    assert [type(result) for result in results] == [UnavailableError] * 4
    await asyncio.wait_for(engine.ended(), 5)
    with pytest.raises(UnavailableError):
        read_kv(engine.kv, [0], 0, 1)


async def test_an_engine_whose_device_fails_on_anothers_memory_is_ended(
    hanging: tuple[RemoteEngine, psutil.Process],
) -> None:
    engine, _ = hanging
    assert isinstance(engine.kv, StagedKv)
    with pytest.raises(UnavailableError, match="the engine is gone"):
        await asyncio.to_thread(engine.kv.copy_from, name_of(engine), [0], [1], 0, 1)
    await asyncio.wait_for(engine.ended(), 5)


async def test_an_engine_that_does_not_copy_in_time_is_ended(
    hanging: tuple[RemoteEngine, psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_channel, "ANSWER_PATIENCE", 0.2)
    engine, child = hanging
    with pytest.raises(UnavailableError, match=r"did not copy KV within 0\.2 s"):
        await asyncio.to_thread(read_kv, engine.kv, [0], 0, 1)
    await asyncio.wait_for(engine.ended(), 5)
    await wait_until(
        lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its end"
    )
