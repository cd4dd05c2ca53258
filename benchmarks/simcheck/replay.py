"""A simulator's trace, asked of a real router: texts become token ids, later turns hold the real answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc.aio
from mesh import REQUEST_DEADLINE_S
from workload import FIRST_TOKEN

from pagemesh.sim.records import Outcome
from pagemesh.sim.trace import Trace, TraceRequest
from pagemesh.v1 import inference_pb2, inference_pb2_grpc, types_pb2

_DEADLINE_S: Final = 2 * REQUEST_DEADLINE_S


@dataclass(frozen=True)
class Replayed:
    """What came of one request. Times in seconds from the start of the replay."""

    token_ids: list[int]
    """Prompt and answer; the prompt alone of a request that was refused or never sent."""
    num_prompt_tokens: int
    sent: float
    first: float
    last: float
    num_cached_tokens: int
    """Of the prompt: delivered without being computed for this request."""
    outcome: Outcome = Outcome.COMPLETED

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.first - self.sent

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids) - self.num_prompt_tokens


class Texts:
    """Token ids of texts, the same for equal numbers in one world, different ones in others."""

    def __init__(self, world: str, vocab_size: int) -> None:
        self._world = world
        self._vocab_size = vocab_size
        self._ids: dict[int, list[int]] = {}

    def ids(self, text: int, start: int, end: int) -> list[int]:
        """Those at these positions."""
        known = self._ids.setdefault(text, [])
        draws = random.Random(f"{self._world} {text} {len(known)}")
        known += (draws.randrange(FIRST_TOKEN, self._vocab_size) for _ in range(end - len(known)))
        return known[start:end]


async def replay(address: str, trace: Trace, texts: Texts) -> list[Replayed]:
    """Send the requests of a trace when they are due, turns after their answers; in the trace's order."""
    following = defaultdict[int, list[int]](list)
    for number, request in enumerate(trace):
        if request.after is not None:
            following[request.after].append(number)
    async with grpc.aio.insecure_channel(address) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        done: dict[int, Replayed] = {}
        started = time.perf_counter()

        async def run(number: int, due: float) -> None:
            request = trace[number]
            await asyncio.sleep(due - (time.perf_counter() - started))
            before = [] if request.after is None else done[request.after].token_ids
            prompt = _prompt(request, before, texts)
            if request.after is not None and done[request.after].outcome is not Outcome.COMPLETED:
                now = time.perf_counter() - started
                done[number] = Replayed(prompt, len(prompt), now, now, now, 0, Outcome.ABANDONED)
            else:
                done[number] = await _ask(stub, request, prompt, started)
            ended = time.perf_counter() - started
            await asyncio.gather(*(run(n, ended + trace[n].arrival) for n in following[number]))

        firsts = [n for n, request in enumerate(trace) if request.after is None]
        await asyncio.gather(*(run(number, trace[number].arrival) for number in firsts))
    return [done[number] for number in range(len(trace))]


def _prompt(request: TraceRequest, before: Sequence[int], texts: Texts) -> list[int]:
    """What was said before, then the pieces of the prompt behind that."""
    ids = list(before)
    for text, end in request.prompt:
        ids += texts.ids(text, len(ids), end) if end > len(ids) else []
    return ids


async def _ask(
    stub: inference_pb2_grpc.InferenceAsyncStub,
    request: TraceRequest,
    prompt: list[int],
    started: float,
) -> Replayed:
    message = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=types_pb2.SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True),
    )
    sent = time.perf_counter() - started
    answer: list[int] = []
    first = last = 0.0
    usage = inference_pb2.Usage()
    try:
        async for response in stub.Generate(message, timeout=_DEADLINE_S):
            if response.token_ids:
                last = time.perf_counter() - started
                first = first or last
                answer += response.token_ids
            if response.HasField("usage"):
                usage = response.usage
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        now = time.perf_counter() - started
        return Replayed(prompt, len(prompt), sent, now, now, 0, Outcome.REJECTED)
    if len(answer) != request.num_output_tokens:
        raise RuntimeError(f"{len(answer)} tokens came instead of {request.num_output_tokens}")
    return Replayed([*prompt, *answer], len(prompt), sent, first, last, usage.cached_token_count)
