"""What does a request cost the router, and for how long does it make others wait?

CPU seconds of the router's process, with workers that answer at once and a kvstore that knows half of each
prompt on one of them. Prompts of 1,000, 10,000 and 100,000 tokens through OpenAI's completions, as text and
as token ids, one request after the other. Between prompts of 100,000 tokens a client of the same router reads
a stream with a token every 5 ms: the longest gap in it is how long the router stood still.

Stages of the router's work are timed alone as well (`routes/stages.py`): CPU time of one call, on one thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import pairwise
from typing import Final

import grpc.aio
from child import Child
from cpu_clock import CpuClock
from google.api.httpbody_pb2 import HttpBody
from mesh import REQUEST_DEADLINE_S
from report import Report
from routes import instant_workers
from routes.instant_workers import InstantSettings
from routes.processes import Processes
from routes.prompts import Prompt, make_prompts
from routes.stages import add_stages
from routes.vocabulary import make_tokenizer_folder

from pagemesh.rpc.channels import open_channel
from pagemesh.tokenizer.canary import canary_text
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.v1 import inference_pb2, inference_pb2_grpc, openai_pb2_grpc, types_pb2

NUM_REQUESTS: Final = {1_000: 40, 10_000: 12, 100_000: 3}
"""In a round, by the length of their prompts in tokens."""
LONGEST: Final = max(NUM_REQUESTS)
NUM_WORKERS: Final = (8, 64, 512)
AIM_S: Final = 0.2
IDLE: Final = "CPU of an idle router"
IDLE_S: Final = 2.0
PAUSE_S: Final = 0.5
SETTLE_S: Final = 2.0
STREAM_TOKENS: Final = 100_000
_MODEL_NAME: Final = "instant"


def measure(report: Report, *, quick: bool, until: float, num_rounds: int) -> bool:
    """Every number of workers in turn, until `time.monotonic()` says so; whether nothing is left."""
    folder = make_tokenizer_folder()
    tokenizer = Tokenizer(folder)
    prompts = make_prompts(tokenizer, NUM_REQUESTS)
    report.settings |= {
        "vocabulary": tokenizer.vocab_size,
        "characters_per_token": round(len(prompts[LONGEST].text) / LONGEST, 2),
        "rounds": 2 if quick else 5,
    }
    if not report.figures:
        add_stages(report, tokenizer, prompts, _MODEL_NAME)
    for num_workers in NUM_WORKERS[:1] if quick else NUM_WORKERS:
        name = f"{num_workers} workers"
        if report.samples(f"{name}: {IDLE}"):
            continue
        if time.monotonic() >= until:
            return False
        with ExitStack() as stack:
            mesh = stack.enter_context(Processes(folder))
            mesh.start_kvstore()
            mesh.await_serving("kvstore")
            held = _held_half(prompts.values())
            canary = canary_text(tokenizer, chat=False).token_digest
            kvstore = mesh.address("kvstore")
            settings = InstantSettings(kvstore, _MODEL_NAME, num_workers, canary, held)
            child = Child("workers that answer at once", instant_workers.run, settings)
            stack.enter_context(child).answer()
            mesh.start_router("router", "--served-model-name", _MODEL_NAME)
            # Before its workers go, which would complain of the sessions that are left.
            stack.callback(mesh.kill, "router")
            mesh.await_members([f"decode-{number}" for number in range(num_workers)])
            mesh.await_serving("router")
            time.sleep(SETTLE_S)
            asyncio.run(_Measurement(mesh, prompts, name).run(report, quick))
    return True


def _held_half(prompts: Iterable[Prompt]) -> dict[int, list[bytes]]:
    """The first half of every prompt on worker 1, a quarter on worker 2."""
    held: dict[int, list[bytes]] = {1: [], 2: []}
    for prompt in prompts:
        names = instant_workers.name_blocks(prompt.token_ids)
        held[1] += names[: len(names) // 2]
        held[2] += names[: len(names) // 4]
    return held


class _Measurement:
    """One router among so many workers."""

    def __init__(self, mesh: Processes, prompts: dict[int, Prompt], name: str) -> None:
        self._mesh = mesh
        self._prompts = prompts
        self._name = name
        self._cpu = CpuClock(mesh.pid("router"))

    async def run(self, report: Report, quick: bool) -> None:
        """All figures."""
        async with open_channel(self._mesh.address("router")) as channel:
            openai: openai_pb2_grpc.OpenAIAsyncStub = openai_pb2_grpc.OpenAIStub(channel)
            cost = {(f, n): list[float]() for n in NUM_REQUESTS for f in ("text", "ids")}
            idle = []
            # The first round only warms up.
            for number in range(3 if quick else 6):
                seconds = await self._idle_share()
                if number:
                    idle.append(seconds)
                for (form, length), samples in cost.items():
                    taken = await self._requests(openai, form, length, seconds)
                    if number:
                        samples.append(taken)
            report.add(f"{self._name}: {IDLE}", "s/s", idle)
            for (form, length), samples in cost.items():
                aim = AIM_S if length == LONGEST else None
                name = f"{self._name}: CPU per request of {length} tokens as {form}"
                report.add(name, "s", samples, aim=aim)
            for form in ("", "text", "ids"):
                pauses = [await self._pause(channel, form) for _ in range(2 if quick else 8)]
                during = f"a prompt of {LONGEST} tokens as {form}" if form else "nothing"
                name = f"{self._name}: longest gap of another stream during {during}"
                report.add(name, "ms", pauses)

    async def _idle_share(self) -> float:
        """CPU seconds per second."""
        before, started = self._cpu.now(), time.perf_counter()
        await asyncio.sleep(IDLE_S)
        return (self._cpu.now() - before) / (time.perf_counter() - started)

    async def _requests(
        self, openai: openai_pb2_grpc.OpenAIAsyncStub, form: str, length: int, idle: float
    ) -> float:
        """CPU seconds of one, without what the router takes anyhow."""
        num_requests = NUM_REQUESTS[length]
        body = self._prompts[length].body(form, _MODEL_NAME)
        before, started = self._cpu.now(), time.perf_counter()
        for _ in range(num_requests):
            await _complete(openai, body)
        seconds = time.perf_counter() - started
        return (self._cpu.now() - before - idle * seconds) / num_requests

    async def _pause(self, channel: grpc.aio.Channel, form: str) -> float:
        """Longest gap in ms of a stream while a request of that form is answered, or nothing is."""
        stream = asyncio.create_task(_read_stream(channel))
        await asyncio.sleep(PAUSE_S)
        begin = time.perf_counter()
        if form:
            openai: openai_pb2_grpc.OpenAIAsyncStub = openai_pb2_grpc.OpenAIStub(channel)
            await _complete(openai, self._prompts[LONGEST].body(form, _MODEL_NAME))
        else:
            await asyncio.sleep(PAUSE_S)
        end = time.perf_counter()
        await asyncio.sleep(PAUSE_S)
        stream.cancel()
        arrivals = await stream
        gaps = pairwise(arrivals)
        return (
            max(later - earlier for earlier, later in gaps if later > begin and earlier < end) * 1e3
        )


async def _complete(openai: openai_pb2_grpc.OpenAIAsyncStub, body: bytes) -> None:
    request = HttpBody(content_type="application/json", data=body)
    async for answer in openai.Completions(request, timeout=REQUEST_DEADLINE_S):
        if b'"choices"' not in answer.data:
            raise RuntimeError(f"the router refused: {answer.data.decode()}")


async def _read_stream(channel: grpc.aio.Channel) -> list[float]:
    """When the tokens of a stream came, by time.perf_counter(), until this is cancelled."""
    stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=[300, 301, 302]),
        sampling=types_pb2.SamplingParams(max_tokens=STREAM_TOKENS, ignore_eos=True),
    )
    arrivals = []
    try:
        async for _ in stub.Generate(request, timeout=REQUEST_DEADLINE_S):
            arrivals.append(time.perf_counter())
    except asyncio.CancelledError:
        return arrivals
    raise RuntimeError("the stream ended before it was measured")
