"""Requests sent at given times, by gRPC or by HTTP, from one process on the machine that is measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import grpc.aio
from completions import stream_completion
from engine_process import Arrival
from mesh import REQUEST_DEADLINE_S
from workload import Request

from pagemesh.v1 import inference_pb2, inference_pb2_grpc, types_pb2


class Client(Protocol):
    """What has requests answered."""

    def stream(self, requests: Sequence[Request], due: Sequence[float]) -> list[Arrival]:
        """Send each request when it is due, in seconds from now; gives when its tokens came, likewise."""
        ...


class OverGrpc:
    """`Inference.Generate` of a mesh, through its gateway."""

    def __init__(self, port: int) -> None:
        self._port = port

    def stream(self, requests: Sequence[Request], due: Sequence[float]) -> list[Arrival]:
        return asyncio.run(self._stream(requests, due))

    async def _stream(self, requests: Sequence[Request], due: Sequence[float]) -> list[Arrival]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            inference = inference_pb2_grpc.InferenceStub(channel)
            return await _send(requests, due, lambda request: _generate(inference, request))


async def _generate(
    inference: inference_pb2_grpc.InferenceAsyncStub, request: Request
) -> tuple[float, float]:
    message = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=request.prompt),
        sampling=types_pb2.SamplingParams(max_tokens=request.num_tokens, ignore_eos=True),
    )
    first = last = 0.0
    async for response in inference.Generate(message, timeout=10 * REQUEST_DEADLINE_S):
        if response.token_ids:
            last = time.perf_counter()
            first = first or last
    return first, last


class OverHttp:
    """OpenAI's completions of a mesh or of a peer."""

    def __init__(self, port: int, model: str) -> None:
        self._port = port
        self._model = model

    def stream(self, requests: Sequence[Request], due: Sequence[float]) -> list[Arrival]:
        return asyncio.run(
            _send(requests, due, lambda one: stream_completion(self._port, self._model, one))
        )


async def _send(
    requests: Sequence[Request],
    due: Sequence[float],
    answer: Callable[[Request], Awaitable[tuple[float, float]]],
) -> list[Arrival]:
    started = time.perf_counter()

    async def one(request: Request, seconds: float) -> Arrival:
        await asyncio.sleep(started + seconds - time.perf_counter())
        first, last = await answer(request)
        return Arrival(first - started, last - started)

    return await asyncio.gather(*map(one, requests, due))
