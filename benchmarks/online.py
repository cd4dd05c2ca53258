"""How fast is a whole mesh while requests keep coming, at different loads?"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import grpc.aio
from mesh import REQUEST_DEADLINE_S, Mesh
from random_models import SHAPES, make_model
from report import Report, make_parser
from workload import Request, make_requests

from pagemesh.v1 import inference_pb2, inference_pb2_grpc, types_pb2

QUESTION = "Latency of streamed answers through the gateway, by load"
SEED = 11
NUM_REQUESTS = {"10M": 128, "160M": 64, "1B": 24}
LOADS = (0.5, 0.8)
"""Requests per second, as shares of what the mesh manages when all come at once."""


class Timing(NamedTuple):
    """What one request took."""

    first_ms: float
    """From the request's due time to its first token."""
    token_ms: float
    """Mean time per token after the first."""


class Run(NamedTuple):
    """All requests of one load."""

    seconds: float
    """Until the last token of the last answer."""
    num_tokens: int
    timings: list[Timing]


async def run(port: int, requests: Sequence[Request], rate: float | None) -> Run:
    """Send requests at random times, `rate` a second on average; all at once without a rate."""
    draws = random.Random(SEED)
    due = 0.0
    tasks = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        inference = inference_pb2_grpc.InferenceStub(channel)
        started = time.perf_counter()
        for request in requests:
            due += draws.expovariate(rate) if rate else 0.0
            tasks.append(asyncio.create_task(_stream(inference, request, started + due)))
        timings = await asyncio.gather(*tasks)
        seconds = time.perf_counter() - started
    return Run(seconds, sum(request.num_tokens for request in requests), timings)


async def _stream(
    inference: inference_pb2_grpc.InferenceAsyncStub, request: Request, due: float
) -> Timing:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    message = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=request.prompt),
        sampling=types_pb2.SamplingParams(max_tokens=request.num_tokens, ignore_eos=True),
    )
    first = last = due
    async for response in inference.Generate(message, timeout=10 * REQUEST_DEADLINE_S):
        if response.token_ids:
            last = time.perf_counter()
            first = last if first == due else first
    return Timing((first - due) * 1e3, (last - first) * 1e3 / max(1, request.num_tokens - 1))


def measure(model: str, quick: bool, report: Report) -> None:
    """All loads with one model, on one mesh."""
    num_requests = NUM_REQUESTS[model] // (4 if quick else 1)
    runs = (None, *LOADS)
    vocab_size = SHAPES[model].vocab_size
    with Mesh("--prefill", "0", model=make_model(model)) as mesh:
        mesh.await_ready()
        asyncio.run(run(mesh.port, make_requests(2, vocab_size, SEED), None))
        capacity = 0.0
        for number, load in enumerate(runs, start=1):
            requests = make_requests(num_requests, vocab_size, SEED + number)
            done = asyncio.run(run(mesh.port, requests, load and load * capacity))
            if load is None:
                capacity = num_requests / done.seconds
                report.add(f"{model}: throughput", "tokens/s", [done.num_tokens / done.seconds])
            name = f"{model}: " + (f"{load:.0%} of capacity" if load else "all at once")
            report.add(f"{name}: TTFT", "ms", [timing.first_ms for timing in done.timings])
            report.add(f"{name}: per token", "ms", [timing.token_ms for timing in done.timings])


def main() -> None:
    """Measure the models that were asked for, print it and write it down."""
    parser = make_parser("online", QUESTION)
    parser.add_argument("--models", default="", help=f"some of {','.join(SHAPES)} (default: all)")
    options = parser.parse_args()
    models = options.models.split(",") if options.models else list(SHAPES)
    if unknown := set(models) - set(SHAPES):
        sys.exit(f"there is no {', '.join(sorted(unknown))}, only {', '.join(SHAPES)}")
    if options.quick and not options.models:
        models = ["10M"]
    report = Report("online", QUESTION, {"models": models, "decode": 1, "prefill": 0})
    for model in models:
        measure(model, options.quick, report)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
