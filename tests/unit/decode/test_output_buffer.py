"""What waits for a router that reads slowly."""

from __future__ import annotations

import asyncio

from pagemesh.decode.messages import OutputBuffer
from pagemesh.v1 import decode_pb2, types_pb2


def output(handle: int, *token_ids: int) -> decode_pb2.RequestOutput:
    return decode_pb2.RequestOutput(handle=handle, token_ids=token_ids)


async def test_outputs_of_a_request_are_merged_until_they_are_taken() -> None:
    buffer = OutputBuffer()
    first = output(1, 10)
    first.prompt_usage.prompt_token_count = 7
    buffer.add(first)
    buffer.add(output(2, 20))
    for token_id in range(11, 500):
        buffer.add(output(1, token_id))
    last = output(1)
    last.finish_reason = types_pb2.FINISH_REASON_LENGTH
    buffer.add(last)
    outputs = await buffer.take()
    assert [one.handle for one in outputs] == [1, 2]
    assert list(outputs[0].token_ids) == list(range(10, 500))
    assert outputs[0].finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert outputs[0].prompt_usage.prompt_token_count == 7
    assert buffer.is_empty


async def test_taking_waits_for_something_new() -> None:
    buffer = OutputBuffer()
    buffer.add(output(1, 10))
    await buffer.take()
    taking = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    assert not taking.done()
    buffer.add(output(1, 11))
    outputs = await asyncio.wait_for(taking, 1.0)
    assert [list(one.token_ids) for one in outputs] == [[11]]


async def test_a_wake_up_may_bring_nothing() -> None:
    buffer = OutputBuffer()
    buffer.wake()
    assert list(await asyncio.wait_for(buffer.take(), 1.0)) == []
