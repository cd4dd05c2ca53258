"""A generation as HTTP bodies: whole, or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from google.api.httpbody_pb2 import HttpBody

from pagemesh.router.generation.interface import RunningGeneration
from pagemesh.router.generation.request import Idle
from pagemesh.router.openai.job import Job
from pagemesh.router.openai.responses import CollectedChoice
from pagemesh.router.servicers.http_answer import events, json_answer


async def collect(job: Job, generation: RunningGeneration) -> HttpBody:
    """The whole answer, when all choices have ended."""
    choices = [CollectedChoice() for _ in job.request.choices]
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            if isinstance(delta, Idle):
                continue
            choices[delta.index].add(delta)
    return json_answer(job.whole(choices, generation.usage()))


async def stream(job: Job, generation: RunningGeneration) -> AsyncGenerator[HttpBody, None]:
    """The answer as events, as it is made."""
    responder = job.responder
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            frames = responder.keepalive() if isinstance(delta, Idle) else responder.events(delta)
            if frames:
                yield events(frames)
    yield events(responder.end(generation.usage()))
