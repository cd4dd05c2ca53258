"""How requests are sent."""

from __future__ import annotations

import asyncio
import time

import pytest

from pagemesh.bench.load import Load, Run, run_load
from pagemesh.bench.progress import Progress
from pagemesh.bench.record import Record

BODY = b"{}"


async def run(
    seconds: float, due_times: list[float], limit: int | None = None, stop_after: float = 60.0
) -> Run:
    """Answers that take so long."""

    async def send(body: bytes, record: Record) -> None:
        await asyncio.sleep(seconds)
        record.end, record.is_finished = time.perf_counter(), True

    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(stop_after, stop.set)
    progress = Progress(len(due_times), "test", is_shown=False)
    load = Load([BODY] * len(due_times), due_times, limit, request_timeout=30.0)
    return await run_load(send, load, stop, progress)


async def test_a_slow_server_slows_no_request_down() -> None:
    found = await run(0.5, [0.05 * number for number in range(10)])
    sent = [record.sent - found.begin for record in found.records if record.sent is not None]
    assert sent == pytest.approx([0.05 * number for number in range(10)], abs=0.1)
    assert found.seconds < 2.0


async def test_with_a_limit_so_many_are_under_way_and_the_rest_waits_here() -> None:
    found = await run(0.2, [0.0] * 4, limit=2)
    assert [record.queue_time for record in found.records] == pytest.approx(
        [0, 0, 0.2, 0.2], abs=0.1
    )
    assert [record.e2el for record in found.records] == pytest.approx([0.2] * 4, abs=0.1)


async def test_latencies_begin_when_a_request_was_due_however_late_the_client_is() -> None:
    async def send(body: bytes, record: Record) -> None:
        time.sleep(0.2)  # noqa: ASYNC251 - a client that has too much to do
        record.end, record.is_finished = time.perf_counter(), True

    progress = Progress(3, "test", is_shown=False)
    load = Load([BODY] * 3, [0.0] * 3, None, request_timeout=30.0)
    found = await run_load(send, load, asyncio.Event(), progress)
    assert [record.e2el for record in found.records] == pytest.approx([0.2, 0.4, 0.6], abs=0.1)


async def test_stopped_it_sends_nothing_more_and_cuts_off_what_is_under_way() -> None:
    found = await run(0.3, [0.0, 0.1, 0.2, 5.0], stop_after=0.45)
    assert [record.is_over for record in found.records] == [True, True, False, False]
    assert [record.sent is not None for record in found.records] == [True, True, True, False]
    assert found.is_stopped
    assert found.seconds < 2.0


async def test_a_fault_of_the_client_itself_is_no_failed_request() -> None:
    async def send(body: bytes, record: Record) -> None:
        raise ZeroDivisionError

    progress = Progress(1, "test", is_shown=False)
    with pytest.raises(ZeroDivisionError):
        await run_load(send, Load([BODY], [0.0], None, 1.0), asyncio.Event(), progress)
