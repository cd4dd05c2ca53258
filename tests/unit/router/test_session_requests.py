"""The order in which a worker hears of submissions and cancellations."""

from __future__ import annotations

import asyncio

from pagemesh.router.session_requests import SessionRequests
from pagemesh.v1 import decode_pb2


async def drain(requests: SessionRequests) -> list[tuple[str, int]]:
    """Everything that waits, as kind and handle."""
    found: list[tuple[str, int]] = []
    while True:
        try:
            async with asyncio.timeout(0.05):
                message = await requests.get()
        except TimeoutError:
            return found
        kind = message.WhichOneof("action")
        assert kind is not None
        found.append((kind, getattr(message, kind).handle))


def queued(*handles: int) -> SessionRequests:
    requests = SessionRequests()
    for handle in handles:
        requests.submit(decode_pb2.Submit(handle=handle))
    return requests


async def test_submissions_keep_their_order() -> None:
    assert await drain(queued(2, 1, 3)) == [("submit", 2), ("submit", 1), ("submit", 3)]


async def test_a_cancellation_overtakes_the_prompts_of_others() -> None:
    requests = queued(1, 2, 3)
    assert (await requests.get()).submit.handle == 1
    requests.cancel(1)
    assert await drain(requests) == [("cancel", 1), ("submit", 2), ("submit", 3)]


async def test_what_was_not_sent_yet_is_never_sent() -> None:
    requests = queued(1, 2)
    requests.cancel(2)
    assert await drain(requests) == [("submit", 1)]


async def test_whoever_waits_is_woken_by_either() -> None:
    requests = SessionRequests()
    waiting = asyncio.create_task(requests.get())
    await asyncio.sleep(0)
    requests.submit(decode_pb2.Submit(handle=1))
    assert (await asyncio.wait_for(waiting, 5)).submit.handle == 1
    waiting = asyncio.create_task(requests.get())
    await asyncio.sleep(0)
    requests.cancel(1)
    assert (await asyncio.wait_for(waiting, 5)).cancel.handle == 1
