"""Reads a worker's messages; those that are there already become one.

A router that keeps up gets each by itself. One that does not would otherwise do everything that a token costs
(text, a frame, a write) for every token, and fall behind more and more: tokens that came together go on together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import grpc

from pagemesh.v1 import decode_pb2, types_pb2

SessionCall = grpc.aio.StreamStreamCall[decode_pb2.SessionRequest, decode_pb2.SessionResponse]

_MAX_MESSAGES: Final = 8
"""That become one: nobody's tokens wait for ever while others keep the router busy."""

_TURNS: Final = 3
"""Turns of the event loop within which grpc gives out a message that has arrived, when the loop is busy."""

UNFINISHED: Final = (
    types_pb2.FINISH_REASON_ERROR,
    types_pb2.FINISH_REASON_CANCELLED,
    types_pb2.FINISH_REASON_MOVED,
)
"""Why a worker may end a request that has not come to its own end."""


async def read_ahead(call: SessionCall) -> AsyncGenerator[decode_pb2.SessionResponse, None]:
    """The responses until the stream ends; raises AioRpcError when it breaks."""
    reading = asyncio.ensure_future(call.read())
    try:
        while True:
            response = await reading
            if not isinstance(response, decode_pb2.SessionResponse):
                return
            reading = asyncio.ensure_future(call.read())
            for _ in range(_MAX_MESSAGES - 1):
                if not await _is_there(reading):
                    break
                later = reading.result()
                if not isinstance(later, decode_pb2.SessionResponse):
                    break
                merge(response, later)
                reading = asyncio.ensure_future(call.read())
            yield response
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def merge(response: decode_pb2.SessionResponse, later: decode_pb2.SessionResponse) -> None:
    """Add what a later message says to an earlier one; each request keeps at most one output but for a failure."""
    known = {output.handle: output for output in response.outputs}
    response.draining |= later.draining
    for output in later.outputs:
        before = known.get(output.handle)
        if before is not None and can_follow(output):
            before.MergeFrom(output)
        else:
            response.outputs.append(output)


def can_follow(output: decode_pb2.RequestOutput) -> bool:
    """Whether an output may become one with those in front of it: what was made before it broke off is told first."""
    return output.finish_reason not in UNFINISHED


async def _is_there(reading: asyncio.Future[object]) -> bool:
    """Whether a message has arrived, which did not fail."""
    for _ in range(_TURNS):
        if reading.done():
            break
        await asyncio.sleep(0)
    return reading.done() and not reading.cancelled() and reading.exception() is None
