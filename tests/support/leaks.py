"""Whether an engine has lost blocks: for the end of any test that used one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from pagemesh.core.engine import Engine
from pagemesh.engine.engine import EngineCore
from pagemesh.scheduler.request_table import RequestTable


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
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while known := await asyncio.wait_for(_known(engine), within):
        assert loop.time() < deadline, f"not idle within {within:g} s: {known}"
        await asyncio.sleep(0.002)


async def _known(engine: Engine) -> object:
    """Who is known to a running engine, if anybody is, or a load that is not that of an idle one."""
    if isinstance(engine, EngineCore):
        known: Future[object] = Future()
        # On the engine's thread, to which the tables belong.
        engine._commands.put(lambda: _look(engine._requests, known))
        if who := await asyncio.wrap_future(known):
            return who
    load = engine.load()
    is_idle = load.num_free_blocks == engine.info.num_blocks and not load.num_waiting
    return None if is_idle and not load.num_running else load


def _look(requests: RequestTable, known: Future[object]) -> None:
    try:
        requests.check_integrity()
    except AssertionError as error:
        known.set_exception(error)
    else:
        known.set_result(_whom(requests))


def _whom(requests: RequestTable) -> list[object]:
    return [*requests._requests, *requests._in_flight, *requests._pins]


def _check_tables(requests: RequestTable) -> None:
    requests.check_integrity()
    known = _whom(requests)
    assert not known, f"the engine still knows {known}"
