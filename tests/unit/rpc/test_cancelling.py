from __future__ import annotations

import asyncio

import pytest

from pagemesh.rpc.cancelling import run_to_end, until_done


async def test_cancelling_is_put_off_until_the_work_is_over() -> None:
    go, over = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        over.append(True)

    caller = asyncio.create_task(run_to_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert over == [True]


async def test_the_work_gives_its_result_or_raises() -> None:
    async def give() -> int:
        return 7

    async def fail() -> int:
        raise ValueError("broken")

    assert await run_to_end(give()) == 7
    with pytest.raises(ValueError, match="broken"):
        await run_to_end(fail())


async def test_work_that_fails_after_its_caller_was_cancelled_says_so() -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise ValueError("broken")

    caller = asyncio.create_task(run_to_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(ValueError, match="broken"):
        await caller


async def test_who_waits_for_an_end_is_cancelled_behind_it() -> None:
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fail_behind_it() -> None:
        try:
            raise ValueError("broken")
        finally:
            await until_done(end)

    caller = asyncio.create_task(fail_behind_it())
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    end.set_exception(OSError("nobody asks for it"))
    with pytest.raises(asyncio.CancelledError):
        await caller
