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
