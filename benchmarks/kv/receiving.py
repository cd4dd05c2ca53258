"""How much slower do running streams decode while KV arrives at their worker?

A real decode worker with a thread runs streams; a prefill worker over a hollow engine, which pretends to
compute at a fixed rate, sends it the KV of prompts, some at a time. What arrives goes the way of all KV
from another host, over gRPC and with all checks. A prompt ends with its first token, so the worker computes
nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from kv.hollow_engine import HollowSettings
from kv.hollow_worker import HollowWorker, WorkerSettings
from kv.sessions import TimedSession
from kv.streams import fresh_prompt, gaps_ms, percentile, start_streams
from members import all_members, metric, metrics_address
from mesh import Mesh, Part
from random_models import make_model
from report import Report
from turns import turns

from pagemesh.messages import layout_from_proto
from pagemesh.v1 import decode_pb2, types_pb2

MODEL = "160M-long"
NUM_STREAMS = 8
STREAM_PROMPT = 64
LONG_PROMPT = 8192
"""Tokens, 100 MB of KV."""
NUM_PROMPTS = 3
"""That arrive at the same time."""
RATE_GB_S = 0.5
COMPUTED_GB_S = 0.55
"""What the sender pretends to: of the last parts of a prompt nobody waits for, and they are not sent."""
STEP_TOKENS = 256
"""That the sender pretends to compute at once."""
SETTLE_S = 1.0
MEASURED_S = 4.0
MOST_SLOWER = 1.1
RECEIVED = "pagemesh:kv_bytes_received_total"


@dataclass
class Side:
    """With or without arrivals, here or elsewhere, round by round."""

    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    mean_ms: list[float] = field(default_factory=list)
    arrived_gb_s: list[float] = field(default_factory=list)


def measure(report: Report, *, quick: bool) -> None:
    """Alternately with and without arrivals; every time the streams are started anew."""
    flags = ("--prefill", "0", "--decode", "1", "--threads", "1", "--kv-cache-memory", "1")
    with Mesh(*flags, model=make_model(MODEL)) as mesh:
        mesh.await_ready()
        decode = mesh.parts()["decode-0"]
        worker = all_members(mesh)["decode-0"]
        settings = WorkerSettings("prefill", _sender(worker))
        elsewhere = WorkerSettings("decode", _sender(worker))
        with HollowWorker(settings) as sender, HollowWorker(elsewhere) as other:
            plan = decode_pb2.PrefillPlan(workers=[sender.peer])
            alone, beside, receiving = asyncio.run(
                _measure(decode, other, plan, num_rounds=4 if quick else 16)
            )
    for name, side in (("alone", alone), ("beside a receiver", beside), ("receiving", receiving)):
        figure = f"{NUM_STREAMS} streams, {name}"
        report.add(f"{figure}: ITL p50", "ms", side.p50_ms)
        report.add(f"{figure}: ITL p99", "ms", side.p99_ms)
        report.add(f"{figure}: ITL mean", "ms", side.mean_ms)
    report.add(
        "KV received beside the streams",
        "GB/s",
        receiving.arrived_gb_s,
        at_least=0.9 * RATE_GB_S,
    )
    for name, ours, base, aim in (
        # The mean, because whatever a step has to wait for counts.
        ("mean, receiving over alone", receiving.mean_ms, alone.mean_ms, MOST_SLOWER),
        ("mean, beside a receiver over alone", beside.mean_ms, alone.mean_ms, None),
        ("mean, receiving over beside a receiver", receiving.mean_ms, beside.mean_ms, None),
        ("p50, receiving over alone", receiving.p50_ms, alone.p50_ms, None),
        ("p99, receiving over alone", receiving.p99_ms, alone.p99_ms, None),
    ):
        ratios = [one / other for one, other in zip(ours, base, strict=True)]
        report.add(f"ITL {name}", "", ratios, aim=aim)


def _sender(worker: types_pb2.WorkerInfo) -> HollowSettings:
    """An engine whose KV the worker takes for its own model's."""
    layout = layout_from_proto(worker.kv_layout)
    # Blocks of a prompt that just ended may not be free yet when the next one comes.
    num_blocks = 2 * NUM_PROMPTS * LONG_PROMPT // layout.block_size
    return HollowSettings(
        layout, worker.model_fingerprint, num_blocks, COMPUTED_GB_S * 1e9, step_tokens=STEP_TOKENS
    )


async def _measure(
    decode: Part, other: HollowWorker, plan: decode_pb2.PrefillPlan, num_rounds: int
) -> tuple[Side, Side, Side]:
    alone, beside, receiving = Side(), Side(), Side()
    async with (
        TimedSession(decode.address) as session,
        TimedSession(other.peer.address) as elsewhere,
    ):
        sides: list[tuple[Side, TimedSession | None]]
        sides = [(alone, None), (beside, elsewhere), (receiving, session)]
        # The first round only warms up.
        for number in range(num_rounds + 1):
            for side, receiver in turns(sides, number):
                await _run(side if number else Side(), session, decode, plan, receiver)
                other.forget_imports()
    return alone, beside, receiving


async def _run(
    side: Side,
    session: TimedSession,
    decode: Part,
    plan: decode_pb2.PrefillPlan,
    receiver: TimedSession | None,
) -> None:
    """Measure new streams for some seconds; with a receiver, while KV arrives there."""
    num_tokens = 64 + int(200 * (MEASURED_S + SETTLE_S))
    streams = await start_streams([session], NUM_STREAMS, STREAM_PROMPT, num_tokens)
    arrivals: list[asyncio.Task[None]] = []
    stop = asyncio.Event()
    if receiver is not None:
        prompts = [fresh_prompt(LONG_PROMPT) for _ in range(NUM_PROMPTS)]
        arrivals = [asyncio.create_task(_arrive(receiver, p, plan, stop)) for p in prompts]
    await asyncio.sleep(SETTLE_S)
    begin, received = time.perf_counter(), metric(metrics_address(decode), RECEIVED)
    await asyncio.sleep(MEASURED_S)
    end = time.perf_counter()
    side.arrived_gb_s.append(
        (metric(metrics_address(decode), RECEIVED) - received) / (end - begin) / 1e9
    )
    gaps = gaps_ms(streams, begin, end)
    side.p50_ms.append(percentile(gaps, 0.5))
    side.p99_ms.append(percentile(gaps, 0.99))
    side.mean_ms.append(NUM_STREAMS * (end - begin) * 1e3 / len(gaps))
    stop.set()
    for answering in {session, receiver or session}:
        await answering.cancel_all()
    await asyncio.gather(*arrivals)


async def _arrive(
    session: TimedSession,
    prompt: list[int],
    plan: decode_pb2.PrefillPlan,
    stop: asyncio.Event,
) -> None:
    """Have prompts arrive one after the other; another first token gives all blocks another name."""
    while not stop.is_set():
        answer = await session.submit(prompt, 1, plan)
        await answer.until_over()
        prompt = [prompt[0] + 1 if prompt[0] < 20_000 else 300, *prompt[1:]]
