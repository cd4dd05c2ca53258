"""An engine in a process of its own: the same tokens and bytes as here, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio

from pagemesh import errors
from pagemesh.config import SchedulerConfig
from pagemesh.core.request import FinishReason
from pagemesh.engine_process.client import EngineProcess, RemoteEngine
from tests.contract.engine_harness import Steps, request, running, settings
from tests.support.engine_processes import engine_processes, freeze
from tests.support.kv_bytes import read_kv
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PINNED = tuple(range(120, 200))
"""No other request's, so that no block of it is known before."""


@pytest.fixture
async def own(demo_model: Path) -> AsyncIterator[tuple[RemoteEngine, Steps]]:
    """An engine that the test may do anything to."""
    async with running(EngineProcess(settings(demo_model))) as engine:
        yield engine


TELLS_OF_THE_COLLECTOR = """
import gc, os, sys, threading

told = open(os.environ["TOLD_IN"], "a", buffering=1)

def tell():
    told.write(f"{gc.isenabled()} {gc.get_freeze_count() > 100_000}\\n")

class Finder:
    def find_spec(name, path, target=None):
        if name == "torch":
            tell()

def tell_when_asked():
    open(os.environ["ASKED_IN"]).close()
    tell()

sys.meta_path.insert(0, Finder)
threading.Thread(target=tell_when_asked, daemon=True).start()
"""


@dataclass
class Shared:
    """An engine for all tests that leave it as it was."""

    engine: RemoteEngine
    steps: Steps
    process: psutil.Process
    asked: Path
    """Opened for writing, it has the engine's process tell of its garbage collector."""
    told: Path
    """Where it does, as it did before torch was loaded."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Shared]:
    folder = tmp_path_factory.mktemp("told")
    (folder / "sitecustomize.py").write_text(TELLS_OF_THE_COLLECTOR)
    asked, told = folder / "asked", folder / "told"
    os.mkfifo(asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("ASKED_IN", str(asked))
        patch.setenv("TOLD_IN", str(told))
        process = EngineProcess(settings(demo_model))
    child = engine_processes()[-1]
    async with running(process) as (engine, steps):
        yield Shared(engine, steps, child, asked, told)


@pytest_asyncio.fixture(loop_scope="module")
async def remote(shared: Shared) -> AsyncIterator[tuple[RemoteEngine, Steps]]:
    """The shared engine, which has said nothing yet, and is left with all its blocks free."""
    shared.steps.all.clear()
    yield shared.engine, shared.steps
    num_blocks = shared.engine.info.num_blocks
    await wait_until(lambda: shared.engine.load().num_free_blocks == num_blocks, "free blocks")


@pytest.mark.asyncio(loop_scope="module")
async def test_tokens_and_kv_are_those_of_an_engine_in_this_process(
    demo_model: Path, remote: tuple[RemoteEngine, Steps]
) -> None:
    from pagemesh.loading.engine import load_engine

    chosen = settings(demo_model)
    local = load_engine(chosen.model, chosen.cache, chosen.scheduler)
    local_steps = Steps()
    local.start(local_steps.all.append)
    engine, steps = remote
    assert engine.info == local.info
    blocks = []
    for side, known in ((local, local_steps), (engine, steps)):
        side.submit(request("answer"))
        side.submit(request("export", 1, hold_blocks=True))
        await wait_until(known.ended("answer"), "the answer")
        await wait_until(known.ended("export"), "the export")
        (export,) = [export for step in known.all for export in step.exports]
        blocks.append(read_kv(side.kv, export.block_ids, 0, side.info.layout.num_layers))
        side.release("export")
    await asyncio.to_thread(local.stop)
    assert steps.tokens("answer") == local_steps.tokens("answer")
    assert len(steps.tokens("answer")) == 8
    np.testing.assert_allclose(
        np.frombuffer(blocks[1], np.float32), np.frombuffer(blocks[0], np.float32), atol=1e-4
    )
    assert np.frombuffer(blocks[1], np.float32).any()
    await wait_until(
        lambda: engine.load().num_free_blocks == engine.info.num_blocks, "all blocks are free"
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pin_gives_the_cached_blocks_and_holds_them(
    remote: tuple[RemoteEngine, Steps],
) -> None:
    engine, steps = remote
    engine.submit(request("first", prompt=PINNED))
    await wait_until(steps.ended("first"), "the first request")
    stored = [name for step in steps.all for name in step.stored_block_hashes]
    block_ids = await asyncio.wrap_future(engine.pin("pin", stored))
    assert len(block_ids) == len(stored) == 5
    free = engine.info.num_blocks - len(block_ids)
    await wait_until(lambda: engine.load().num_free_blocks == free, "the pin holds its blocks")
    engine.release("pin")
    await wait_until(
        lambda: engine.load().num_free_blocks == engine.info.num_blocks, "all blocks are free"
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pin_under_a_name_in_use_fails_as_it_does_here(
    remote: tuple[RemoteEngine, Steps],
) -> None:
    engine, _ = remote
    assert await asyncio.wrap_future(engine.pin("pin", ())) == ()
    with pytest.raises(errors.InvalidRequestError, match="in use"):
        await asyncio.wrap_future(engine.pin("pin", ()))
    engine.release("pin")


async def test_stopping_cancels_what_runs_and_says_so(own: tuple[RemoteEngine, Steps]) -> None:
    engine, steps = own
    engine.submit(request("long", 1500))
    await wait_until(lambda: bool(steps.tokens("long")), "the first token")
    await asyncio.to_thread(engine.stop)
    assert steps.outputs("long")[-1].finish_reason is FinishReason.CANCELLED
    with pytest.raises(errors.UnavailableError):
        engine.submit(request("late"))
    with pytest.raises(errors.UnavailableError):
        await asyncio.wrap_future(engine.pin("late", ()))


async def test_an_engine_that_is_killed_is_noticed(own: tuple[RemoteEngine, Steps]) -> None:
    engine, steps = own
    engine.submit(request("long", 1500))
    await wait_until(lambda: bool(steps.tokens("long")), "the first token")
    child = engine_processes()[-1]
    freeze(child)
    pin = engine.pin("pin", ())
    child.kill()
    await asyncio.wait_for(engine.ended(), 5)
    with pytest.raises(errors.UnavailableError):
        pin.result(timeout=0)
    with pytest.raises(errors.UnavailableError):
        engine.submit(request("late"))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
async def test_signals_for_the_group_of_processes_are_the_workers_business(
    shared: Shared, remote: tuple[RemoteEngine, Steps], number: signal.Signals
) -> None:
    engine, steps = remote
    engine.submit(request("long", 200))
    await wait_until(lambda: bool(steps.tokens("long")), "the first token")
    shared.process.send_signal(number)
    await wait_until(steps.ended("long"), "the last token", 30)
    assert len(steps.tokens("long")) == 200


async def test_what_the_engine_has_against_its_settings_is_raised(tmp_path: Path) -> None:
    others = engine_processes()
    process = EngineProcess(settings(tmp_path))
    with pytest.raises(errors.ConfigError, match=r"config\.json"):
        await asyncio.to_thread(process.connect)
    assert engine_processes() == others


async def test_an_engine_that_is_killed_while_it_loads_is_noticed(demo_model: Path) -> None:
    process = EngineProcess(settings(demo_model))
    process.kill()
    with pytest.raises(errors.InternalError, match="ended while it loaded"):
        await asyncio.to_thread(process.connect)


ORPHAN = """
import sys
from pathlib import Path
from pagemesh.engine_process.client import EngineProcess
from tests.contract.engine_harness import settings

process = EngineProcess(settings(Path(sys.argv[1])))
if sys.argv[2] == "loaded":
    process.connect()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.product
@pytest.mark.parametrize("phase", ["loading", "loaded"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_the_engine_ends_with_its_worker(
    demo_model: Path, phase: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(demo_model), phase],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "started\n"
        # It is there, but may not have begun to run its program.
        asyncio.run(wait_until(lambda: bool(engine_processes(of=worker.pid)), "an engine"))
        (engine,) = engine_processes(of=worker.pid)
        worker.send_signal(number)
        worker.wait(5)
        engine.wait(5)


async def test_an_engine_that_freezes_is_ended_though_its_worker_waits_for_room_in_the_pipe(
    demo_model: Path,
) -> None:
    process = EngineProcess(settings(demo_model), silence_limit=2)
    engine = await asyncio.to_thread(process.connect)
    engine.start(lambda step: None)
    child = engine_processes()[-1]
    freeze(child)
    with pytest.raises(errors.UnavailableError):
        for index in range(1000):
            # More than the pipe takes: the loop itself waits in here until the engine is ended.
            engine.submit(replace(request(f"{index}"), prompt_token_ids=tuple(range(1500))))
    await asyncio.wait_for(engine.ended(), 5)
    await asyncio.to_thread(engine.stop)


async def test_an_engine_whose_step_hangs_ends_itself(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    hasty = replace(settings(demo_model), scheduler=SchedulerConfig(step_timeout=0.5))
    process = EngineProcess(hasty, program="tests.support.hanging_engine")
    engine = await asyncio.to_thread(process.connect)
    steps = Steps()
    engine.start(steps.all.append)
    assert await asyncio.wait_for(asyncio.wrap_future(engine.pin("idle", ())), 5) == ()
    engine.submit(request("answer"))
    await asyncio.wait_for(engine.ended(), 10)
    assert not steps.ended("answer")()
    await asyncio.to_thread(engine.stop)


@pytest.mark.asyncio(loop_scope="module")
async def test_garbage_is_collected_when_all_is_loaded_but_not_in_what_is_loaded(
    shared: Shared,
) -> None:
    assert shared.told.read_text() == "False False\n"
    os.close(os.open(shared.asked, os.O_WRONLY | os.O_NONBLOCK))
    await wait_until(lambda: shared.told.read_text() == "False False\nTrue True\n", "its word")
