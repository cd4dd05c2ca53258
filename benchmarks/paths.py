"""The same request along four paths: HTTP gateway, router, decode worker, and the engine alone.

Every path takes token ids, generates a fixed number of tokens greedily and gives the times at which
tokens arrived.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import time
from collections.abc import Sequence
from itertools import count
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

import grpc.aio
from child import Child, questions
from mesh import MODEL, REQUEST_DEADLINE_S, Mesh, Part

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest
from pagemesh.sampling.params import SamplingParams
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, inference_pb2, inference_pb2_grpc, types_pb2

NUM_TOKENS = 64


class Timing(NamedTuple):
    """What one request took."""

    first_ms: float
    """From the call to the first token."""
    token_ms: float
    """Mean time per token after the first."""


def timing(started: float, arrivals: Sequence[float]) -> Timing:
    """From the time of the call and the times at which tokens arrived, all in seconds."""
    return Timing(
        (arrivals[0] - started) * 1e3, (arrivals[-1] - arrivals[0]) * 1e3 / (NUM_TOKENS - 1)
    )


class RequestPath(Protocol):
    """One way to the engine."""

    async def run(self, prompt: list[int]) -> Timing:
        """One request, alone."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...


class GatewayPath:
    """HTTP and server-sent events through Envoy."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    async def run(self, prompt: list[int]) -> Timing:
        """Blocks the loop, on which nothing else runs meanwhile."""
        body = {
            "model": "demo",
            "prompt": prompt,
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        started = time.perf_counter()
        events = list(self._mesh.stream("/v1/completions", body))
        return timing(
            started, [at for at, data in events if json.loads(data)["choices"][0]["text"]]
        )

    async def close(self) -> None:
        """Nothing to do: every request has a connection of its own."""


class RouterPath:
    """The router's Inference service by gRPC, without the gateway."""

    def __init__(self, router: Part) -> None:
        self._channel = grpc.aio.insecure_channel(router.address)
        self._inference = inference_pb2_grpc.InferenceStub(self._channel)

    async def run(self, prompt: list[int]) -> Timing:
        """One Generate call."""
        request = inference_pb2.GenerateRequest(
            model="demo",
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=types_pb2.SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True),
        )
        started = time.perf_counter()
        return timing(
            started,
            [
                time.perf_counter()
                async for response in self._inference.Generate(request, timeout=REQUEST_DEADLINE_S)
                if response.token_ids
            ],
        )

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class WorkerPath:
    """The decode worker's Session, without gateway and router."""

    def __init__(self, decode: Part, plan: decode_pb2.PrefillPlan | None) -> None:
        self._channel = grpc.aio.insecure_channel(decode.address)
        self._session = decode_pb2_grpc.DecodeStub(self._channel).Session()
        self._plan = plan
        self._handles = count(1)

    async def run(self, prompt: list[int]) -> Timing:
        """One Submit, and its outputs."""
        submit = decode_pb2.Submit(
            handle=next(self._handles),
            request_id="benchmark",
            prompt_token_ids=prompt,
            sampling=types_pb2.SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True),
            prefill_plan=self._plan,
        )
        submit.timeout.FromSeconds(int(REQUEST_DEADLINE_S))
        arrivals: list[float] = []
        started = time.perf_counter()
        await self._session.write(decode_pb2.SessionRequest(submit=submit))
        while True:
            response = await asyncio.wait_for(self._session.read(), REQUEST_DEADLINE_S)
            assert isinstance(response, decode_pb2.SessionResponse), "the worker closed the session"
            for output in response.outputs:
                if output.token_ids:
                    arrivals.append(time.perf_counter())
                if output.finish_reason == types_pb2.FINISH_REASON_LENGTH:
                    return timing(started, arrivals)
                assert not output.finish_reason, output

    async def close(self) -> None:
        """End the session."""
        self._session.cancel()
        await self._channel.close()


class EnginePath:
    """The engine alone: no gRPC, in a process with the worker's threads and OpenMP settings."""

    def __init__(self, decode: Part) -> None:
        openmp = {
            name: value
            for name, value in decode.process.environ().items()
            if name.startswith(("OMP_", "KMP_"))
        }
        os.environ.update(openmp)
        self._child = Child("the engine", _serve, int(decode.flags["--threads"]))

    async def run(self, prompt: list[int]) -> Timing:
        """One request; blocks the loop, on which nothing else runs meanwhile."""
        taken: Timing = self._child.ask(prompt)
        return taken

    async def close(self) -> None:
        """End the process."""
        self._child.close()


def _serve(parent: Connection, threads: int) -> None:
    """Body of the engine's process: a prompt in, its timing out."""
    # Here, so that the measuring process has no torch and none of its threads.
    from pagemesh.loading.engine import load_engine

    model = ModelConfig(model=str(MODEL), threads=threads)
    engine = load_engine(model, CacheConfig(), SchedulerConfig())
    steps: queue.SimpleQueue[tuple[float, StepOutput]] = queue.SimpleQueue()
    engine.start(lambda step: steps.put((time.perf_counter(), step)))
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(questions(parent)):
        started = time.perf_counter()
        engine.submit(EngineRequest(f"benchmark-{number}", tuple(prompt), sampling))
        parent.send(timing(started, _arrivals(steps)))
    engine.stop()


def _arrivals(steps: queue.SimpleQueue[tuple[float, StepOutput]]) -> list[float]:
    """When each token of the one running request came, up to its end."""
    arrivals: list[float] = []
    while True:
        at, step = steps.get(timeout=REQUEST_DEADLINE_S)
        for output in step.outputs:
            arrivals += [at for _ in output.token_ids]
            if output.finish_reason:
                return arrivals
