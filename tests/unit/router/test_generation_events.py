"""Outputs that wait for a client become one."""

from __future__ import annotations

import asyncio

import pytest

from pagemesh.errors import UnavailableError
from pagemesh.router.generation.events import Events
from pagemesh.router.generation.request import Idle
from pagemesh.router.read_ahead import merge
from pagemesh.v1 import decode_pb2, types_pb2

ONGOING = types_pb2.FINISH_REASON_UNSPECIFIED
STOP = types_pb2.FINISH_REASON_STOP
ERROR = types_pb2.FINISH_REASON_ERROR
CANCELLED = types_pb2.FINISH_REASON_CANCELLED


def output(
    *token_ids: int, reason: types_pb2.FinishReason.ValueType = ONGOING
) -> decode_pb2.RequestOutput:
    scores = [types_pb2.TokenLogprobs(token_id=token_id) for token_id in token_ids]
    return decode_pb2.RequestOutput(token_ids=token_ids, logprobs=scores, finish_reason=reason)


async def test_outputs_of_a_choice_become_one_while_they_wait() -> None:
    events = Events()
    first = output(1)
    first.prompt_usage.cached_token_count = 7
    events.put_output(0, first)
    events.put_output(1, output(5))
    events.put_output(0, output(2, 3))
    events.put_output(0, output(4, reason=STOP))
    index, merged = await events.get()  # type: ignore[misc]
    assert (index, list(merged.token_ids), merged.finish_reason) == (0, [1, 2, 3, 4], STOP)
    assert [score.token_id for score in merged.logprobs] == [1, 2, 3, 4]
    assert merged.prompt_usage.cached_token_count == 7
    assert await events.get() == (1, output(5))


async def test_what_was_taken_does_not_grow_any_more() -> None:
    events = Events()
    events.put_output(0, output(1))
    _, taken = await events.get()  # type: ignore[misc]
    events.put_output(0, output(2))
    assert list(taken.token_ids) == [1]
    assert await events.get() == (0, output(2))


@pytest.mark.parametrize("reason", [ERROR, CANCELLED])
async def test_tokens_in_front_of_a_failure_come_first(
    reason: types_pb2.FinishReason.ValueType,
) -> None:
    events = Events()
    events.put_output(0, output(1))
    events.put_output(0, output(reason=reason))
    events.put(UnavailableError("gone"))
    assert await events.get() == (0, output(1))
    assert await events.get() == (0, output(reason=reason))
    assert isinstance(await events.get(), UnavailableError)


async def ready(events: Events) -> list[tuple[int, decode_pb2.RequestOutput]]:
    """All that is told without waiting."""
    events.put(Idle.IDLE)
    found = []
    while (event := await events.get()) is not Idle.IDLE:
        assert isinstance(event, tuple)
        found.append(event)
    return found


async def test_tokens_wait_for_others_but_the_first_and_the_last() -> None:
    events = Events(3)
    told = []
    for token_id, reason in [(1, ONGOING), (2, ONGOING), (3, ONGOING), (4, ONGOING), (5, ONGOING)]:
        events.put_output(0, output(token_id, reason=reason))
        events.put_output(1, output(10 * token_id))
        told += [(index, list(taken.token_ids)) for index, taken in await ready(events)]
    events.put_output(0, output(6, reason=STOP))
    assert told == [(0, [1]), (1, [10]), (0, [2, 3, 4]), (1, [20, 30, 40])]
    assert await events.get() == (0, output(5, 6, reason=STOP))


async def test_what_was_held_comes_in_front_of_a_failure() -> None:
    for failure in (output(reason=ERROR), UnavailableError("gone")):
        events = Events(3)
        events.put_output(0, output(1))
        assert await events.get() == (0, output(1))
        events.put_output(0, output(2))
        if isinstance(failure, UnavailableError):
            events.put(failure)
        else:
            events.put_output(0, failure)
        assert await events.get() == (0, output(2))
        last = await events.get()
        assert last == (failure if isinstance(failure, UnavailableError) else (0, failure))


async def test_silence_is_told_while_tokens_are_held() -> None:
    events = Events(3)
    events.put_output(0, output(1))
    await events.get()
    events.put_output(0, output(2))
    events.put(Idle.IDLE)
    assert await events.get() is Idle.IDLE
    events.put_output(0, output(3, 4))
    assert await events.get() == (0, output(2, 3, 4))


def step(*outputs: tuple[int, decode_pb2.RequestOutput]) -> decode_pb2.SessionResponse:
    response = decode_pb2.SessionResponse()
    for handle, each in outputs:
        each.handle = handle
        response.outputs.append(each)
    return response


def test_steps_that_wait_together_become_one() -> None:
    first = step((7, output(1)), (8, output(2)))
    merge(first, step((8, output(3)), (9, output(4)), (7, output(reason=ERROR))))
    assert first == step(
        (7, output(1)), (8, output(2, 3)), (9, output(4)), (7, output(reason=ERROR))
    )
    merge(first, decode_pb2.SessionResponse(draining=True))
    assert first.draining


async def test_whoever_waits_is_woken() -> None:
    events = Events()
    waiting = asyncio.create_task(events.get())
    await asyncio.sleep(0)
    events.put(Idle.IDLE)
    assert await asyncio.wait_for(waiting, 5) is Idle.IDLE
