from __future__ import annotations

import asyncio

import pytest

from pagemesh.rpc import tasks
from pagemesh.rpc.tasks import cancel_to_end, run_to_end, until_done


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


@pytest.mark.parametrize("num_lost", [0, 1, 3])
async def test_a_task_that_loses_its_cancellation_is_cancelled_again(
    num_lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_S", 0.01)
    lost: list[bool] = []

    async def go_on() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(lost) == num_lost:
                    raise
                lost.append(True)

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancel_to_end(task)
    assert task.cancelled()
    assert len(lost) == num_lost


async def test_a_task_that_is_over_is_left_alone() -> None:
    task = asyncio.create_task(asyncio.sleep(0, "over"))
    await task
    await cancel_to_end(task)
    assert task.result() == "over"
