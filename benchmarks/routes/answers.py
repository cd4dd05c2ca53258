"""A client of a router's `Inference.Generate` that notes when tokens come, and what was cached."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc.aio
from mesh import REQUEST_DEADLINE_S
from workload import Request

from pagemesh.v1 import inference_pb2, inference_pb2_grpc, types_pb2

_DEADLINE_S = 3 * REQUEST_DEADLINE_S


@dataclass(frozen=True)
class Answer:
    """What came of a request; seconds from the start of the run. Without tokens, when it failed."""

    due: float
    first: float
    last: float
    num_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    """Of the prompt: delivered without being computed for this request."""

    @property
    def ttft(self) -> float:
        """From when it was due to the first token, seconds."""
        return self.first - self.due

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.last - self.first) / max(1, self.num_tokens - 1)


class Client:
    """Asks one router. Use it on one event loop."""

    def __init__(self, channel: grpc.aio.Channel, *, is_patient: bool = False) -> None:
        """One that is patient takes a request that failed for an answer."""
        self._is_patient = is_patient
        self._inference: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(
            channel
        )

    async def at_times(self, requests: Sequence[Request], due: Sequence[float]) -> list[Answer]:
        """Send each request when it is due, in seconds from now, whatever became of those before."""
        started = time.perf_counter()

        async def one(request: Request, seconds: float) -> Answer:
            await asyncio.sleep(started + seconds - time.perf_counter())
            return await self._ask(request, started, seconds)

        return await asyncio.gather(*map(one, requests, due))

    async def in_turn(self, requests: Sequence[Request], num_at_once: int) -> list[Answer]:
        """Send each request as soon as fewer than so many are in progress."""
        started = time.perf_counter()
        waiting = iter(requests)
        answers: list[Answer] = []

        async def take(waiting: Iterator[Request]) -> None:
            for request in waiting:
                answers.append(await self._ask(request, started, time.perf_counter() - started))

        await asyncio.gather(*(take(waiting) for _ in range(num_at_once)))
        return answers

    async def _ask(self, request: Request, started: float, due: float) -> Answer:
        message = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=request.prompt),
            sampling=types_pb2.SamplingParams(max_tokens=request.num_tokens, ignore_eos=True),
        )
        first, last, num_tokens = math.inf, 0.0, 0
        usage = inference_pb2.Usage()
        try:
            async for response in self._inference.Generate(message, timeout=_DEADLINE_S):
                if response.token_ids:
                    last = time.perf_counter() - started
                    first = min(first, last)
                    num_tokens += len(response.token_ids)
                if response.HasField("usage"):
                    usage = response.usage
        except grpc.aio.AioRpcError:
            if not self._is_patient:
                raise
            return Answer(due, math.inf, math.inf, 0, len(request.prompt), 0)
        if num_tokens != request.num_tokens:
            raise RuntimeError(f"{num_tokens} tokens came instead of {request.num_tokens}")
        return Answer(
            due, first, last, num_tokens, usage.prompt_token_count, usage.cached_token_count
        )
