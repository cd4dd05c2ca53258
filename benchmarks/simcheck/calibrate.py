"""What a simulation needs to know of a mesh: measured on its workers one by one, and on all of them at once."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

import grpc.aio
from members import metric
from mesh import REQUEST_DEADLINE_S
from workload import make_prompt

from pagemesh.core.load import num_pairs
from pagemesh.sim.model import DecodeModel, PrefillModel
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, inference_pb2, inference_pb2_grpc, types_pb2

NUM_TOKENS: Final = 48
MANY: Final = 8
"""Requests at once, to tell what each costs from what a step does."""
ROUNDS: Final = 5
USUAL_TOKENS: Final = 512
USUAL_ANSWER: Final = 24
FILLING_TOKENS: Final = 1500
LENGTHS: Final = (40, 100, 200, 400, 700, 1100, 1500)
"""Of prompts, so that a token, a pair and a step can be told apart."""


class Overheads(NamedTuple):
    """Seconds outside of engines."""

    router: float
    """What a request takes longer through the router."""
    network: float
    """One way between whoever asks a worker and its engine."""


async def decode_model(address: str, vocab_size: int) -> DecodeModel:
    """Of one worker that does nothing else: a step with one sequence, and what more of them add."""
    one, many = [], []
    for number in range(ROUNDS):
        one.append(await _seconds_per_token(address, 1, vocab_size, number))
        many.append(await _seconds_per_token(address, MANY, vocab_size, number))
    single, crowd = statistics.median(one), statistics.median(many)
    per_sequence = max(0.0, (crowd - single) / (MANY - 1))
    return DecodeModel(per_sequence, 0.0, max(1e-6, single - per_sequence))


def prefill_models(metrics_addresses: Mapping[str, str]) -> dict[str, PrefillModel]:
    """What each worker has learnt from its steps."""
    found = {}
    for worker_id, address in metrics_addresses.items():
        token, pair, step = (
            metric(address, f"pagemesh:prefill_seconds_per_{name}")
            for name in ("token", "pair", "step")
        )
        found[worker_id] = PrefillModel(token, pair, step)
    return found


def usual_seconds(model: PrefillModel) -> float:
    """What a usual prompt would take: numbers of one worker belong together, their means do not."""
    pairs = num_pairs(USUAL_TOKENS, 0)
    return (
        USUAL_TOKENS * model.seconds_per_token
        + pairs * model.seconds_per_pair
        + model.seconds_per_step
    )


async def fill(address: str, num_tokens: int, vocab_size: int) -> None:
    """Have a worker compute so many tokens that nobody asks for again: what it had cached is gone."""
    await compute(address, [FILLING_TOKENS] * (1 + num_tokens // FILLING_TOKENS), vocab_size)


async def compute(
    address: str, lengths: Sequence[int], vocab_size: int, num_tokens: int = 1
) -> None:
    """Have a worker answer prompts of these lengths, one after the other; nobody asks for them again."""
    async with grpc.aio.insecure_channel(address) as channel:
        session = decode_pb2_grpc.DecodeStub(channel).Session()
        for handle, length in enumerate(lengths, 1):
            prompt = make_prompt(length, vocab_size, next(_names) + time.time_ns())
            await session.write(_submit(handle, prompt, num_tokens))
            await _arrivals(session, 1)
        session.cancel()


async def cores_for_engines(addresses: Sequence[str], vocab_size: int) -> float:
    """Workers that compute at a time as quickly as one alone: by what all of them at once take longer.

    That is less than the cores: workers talk while they compute, and share caches and memory.
    """
    prompts = [USUAL_TOKENS] * ROUNDS
    ratios = []
    for _ in range(2):
        started = time.perf_counter()
        await compute(addresses[0], prompts, vocab_size, USUAL_ANSWER)
        alone = time.perf_counter() - started
        await asyncio.gather(
            *(compute(each, prompts, vocab_size, USUAL_ANSWER) for each in addresses)
        )
        ratios.append(alone * len(addresses) / (time.perf_counter() - started - alone))
    return statistics.mean(ratios)


async def overheads(worker: str, router: str, vocab_size: int, prefill: PrefillModel) -> Overheads:
    """From first tokens of short prompts, new each time, asked of a worker and of a router."""
    direct, routed = [], []
    for number in range(2 * ROUNDS):
        direct.append(await _first_token(worker, make_prompt(17, vocab_size, 1000 + number)))
        routed.append(await _routed_token(router, make_prompt(17, vocab_size, 2000 + number)))
    step = prefill.seconds_per_step + 17 * prefill.seconds_per_token
    median = statistics.median(direct)
    return Overheads(max(0.0, statistics.median(routed) - median), max(0.0, (median - step) / 2))


async def _seconds_per_token(address: str, num_requests: int, vocab_size: int, seed: int) -> float:
    """Mean time between two tokens while so many requests decode."""
    async with grpc.aio.insecure_channel(address) as channel:
        session = decode_pb2_grpc.DecodeStub(channel).Session()
        for handle in range(1, num_requests + 1):
            prompt = make_prompt(8, vocab_size, 100 * seed + handle)
            await session.write(_submit(handle, prompt, NUM_TOKENS))
        arrivals = await _arrivals(session, num_requests)
        session.cancel()
    # From when all decode until the first one ends.
    began = max(times[0] for times in arrivals.values())
    times = [t for times in arrivals.values() for t in times if t >= began]
    return (max(times) - began) / (len(set(times)) - 1) if len(set(times)) > 1 else 0.0


async def _first_token(address: str, prompt: list[int]) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        session = decode_pb2_grpc.DecodeStub(channel).Session()
        # The first one opens the session.
        for handle, ids in enumerate((prompt[:1], prompt), 1):
            started = time.perf_counter()
            await session.write(_submit(handle, ids, 1))
            arrivals = await _arrivals(session, 1)
        session.cancel()
    return arrivals[2][0] - started


async def _routed_token(address: str, prompt: list[int]) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for ids in (prompt[:1], prompt):
            message = inference_pb2.GenerateRequest(
                token_ids=inference_pb2.TokenIds(ids=ids),
                sampling=types_pb2.SamplingParams(max_tokens=1, ignore_eos=True),
            )
            started = time.perf_counter()
            async for response in stub.Generate(message, timeout=REQUEST_DEADLINE_S):
                if response.token_ids:
                    seconds = time.perf_counter() - started
    return seconds


_names = count()


def _submit(handle: int, prompt: list[int], num_tokens: int) -> decode_pb2.SessionRequest:
    submit = decode_pb2.Submit(
        handle=handle,
        request_id=f"calibration-{next(_names)}",
        prompt_token_ids=prompt,
        sampling=types_pb2.SamplingParams(max_tokens=num_tokens, ignore_eos=True),
    )
    submit.timeout.FromSeconds(int(REQUEST_DEADLINE_S))
    return decode_pb2.SessionRequest(submit=submit)


async def _arrivals(session: object, num_requests: int) -> dict[int, list[float]]:
    """When tokens came, by handle, up to the end of all."""
    arrivals: dict[int, list[float]] = {}
    num_left = num_requests
    while num_left:
        response = await asyncio.wait_for(session.read(), REQUEST_DEADLINE_S)  # type: ignore[attr-defined]
        assert isinstance(response, decode_pb2.SessionResponse), "the worker closed the session"
        now = time.perf_counter()
        for output in response.outputs:
            arrivals.setdefault(output.handle, []).extend(now for _ in output.token_ids)
            if output.finish_reason:
                assert output.finish_reason == types_pb2.FINISH_REASON_LENGTH, output
                num_left -= 1
    return arrivals
