"""Whether an engine has lost blocks: for the end of any test that used one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from pagemesh.engine.engine import EngineCore
from pagemesh.engine.interface import Engine
from pagemesh.scheduler.lifecycle import Lifecycle
from tests.support.waiting import wait_until


def assert_nothing_leaked(engine: Engine) -> None:
    """Of an engine that was stopped when everybody had ended: all blocks are free, the tables sound.

    One in a process of its own tells its load and no more.
    """
    if isinstance(engine, EngineCore):
        _check_tables(engine._requests)
    load = engine.load()
    assert load.num_free_blocks == engine.info.num_blocks, "blocks are lost"
    assert (load.num_running, load.num_waiting, load.num_unused_slots) == (0, 0, 0), load


async def assert_idle(engine: Engine, within: float = 5.0) -> None:
    """Of a running engine: within so many seconds nobody asks anything of it any more, and see above."""

    def is_idle() -> bool:
        load = engine.load()
        has_requests = load.num_running or load.num_waiting
        return load.num_free_blocks == engine.info.num_blocks and not has_requests

    await wait_until(is_idle, "the engine is idle, and all its blocks are free", within)
    if isinstance(engine, EngineCore):
        checked: Future[None] = Future()
        # On the engine's thread, to which the tables belong.
        engine._commands.put(lambda: _note(checked, engine._requests))
        await asyncio.wait_for(asyncio.wrap_future(checked), within)


def _note(checked: Future[None], requests: Lifecycle) -> None:
    try:
        _check_tables(requests)
    except AssertionError as error:
        checked.set_exception(error)
    else:
        checked.set_result(None)


def _check_tables(requests: Lifecycle) -> None:
    requests.check_integrity()
    known = [*requests._requests, *requests._in_flight, *requests._pins]
    assert not known, f"the engine still knows {known}"
