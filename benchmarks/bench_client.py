"""What does `pagemesh bench serve` cost by itself, and how much can it follow, beside httpx and the openai SDK?

The server is as cheap as Python can make one: it answers with frames that were made beforehand. CPU time is that of
the client's process. Paced, 50 streams get a token each every 10 ms: what a token costs when it comes alone. Single
tokens are many short answers: what a request costs. Flat out, the server writes as fast as it can: what the client
follows before it is the limit itself, with many tokens in one read. Clients take turns.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import httpx
import openai
import uvloop
from report import Report, arguments

from pagemesh.bench.client import Client
from pagemesh.bench.datasets import Sample
from pagemesh.bench.endpoint_settings import EndpointConfig
from pagemesh.bench.record import Record

QUESTION = "What the benchmark's own client costs for a request and for a token, beside httpx and the openai SDK"
NUM_STREAMS = 50
_DEADLINE_S: Final = 300.0
_FRAME: Final = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" word",'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
_END: Final = (
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
)
_BODY: Final = {"model": "m", "prompt": "Hello", "max_tokens": 1, "stream": True}

Ask = Callable[[], Awaitable[int]]
"""Asks once; gives the number of tokens that came."""


class Pace(NamedTuple):
    """What the server does, and how often it is asked."""

    num_tokens: int
    gap_s: float
    num_requests: int


PACES: Final = {
    "paced": Pace(100, 0.01, 200),
    "single tokens": Pace(1, 0.0, 1000),
    "flat out": Pace(1000, 0.0, 50),
}


async def serve(num_tokens: int, gap_s: float) -> None:
    """The server's process: says its port, and answers until it is killed."""

    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                (size,) = [
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-l")
                ]
                await reader.readexactly(int(size.partition(b":")[2]))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                    b"transfer-encoding: chunked\r\n\r\n"
                )
                for _ in range(num_tokens):
                    writer.write(chunk(_FRAME))
                    await (asyncio.sleep(gap_s) if gap_s else writer.drain())
                writer.write(chunk(_END) + b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def with_ours(port: int, pace: Pace) -> float:
    """Seconds of CPU."""
    async with Client(EndpointConfig(port=port)) as client:
        body = client.body(Sample("Hello", 1, pace.num_tokens), "m", ignores_eos=False)

        async def ask() -> int:
            record = Record(due=time.perf_counter())
            await client.send(body, record)
            assert record.is_good, record.error
            return len(record.piece_times)

        return await cpu_of(ask, pace)


async def with_httpx(port: int, pace: Pace) -> float:
    """Likewise."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:

        async def ask() -> int:
            num_tokens = 0
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with client.stream("POST", url, json=_BODY) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        choice = json.loads(line[6:])["choices"][0]
                        num_tokens += bool(choice["text"] and time.perf_counter())
            return num_tokens

        return await cpu_of(ask, pace)


async def with_openai(port: int, pace: Pace) -> float:
    """Likewise."""
    url = f"http://127.0.0.1:{port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def ask() -> int:
            num_tokens = 0
            stream = await client.completions.create(model="m", prompt="Hello", stream=True)
            async for event in stream:
                num_tokens += bool(event.choices[0].text and time.perf_counter())
            return num_tokens

        return await cpu_of(ask, pace)


CLIENTS: Final = {"ours (aiohttp)": with_ours, "httpx": with_httpx, "openai": with_openai}


async def cpu_of(ask: Ask, pace: Pace) -> float:
    """Seconds of CPU for all requests, so many at a time, behind one that opens the way."""
    places = asyncio.Semaphore(NUM_STREAMS)

    async def one() -> None:
        async with places:
            assert await ask() == pace.num_tokens

    await one()
    began_at = time.process_time()
    async with asyncio.timeout(_DEADLINE_S):
        await asyncio.gather(*(one() for _ in range(pace.num_requests)))
    return time.process_time() - began_at


def measure(report: Report, name: str, num_rounds: int) -> None:
    """All clients at one pace; the first round only warms up."""
    pace = PACES[name]
    command = [sys.executable, __file__, "serve", str(pace.num_tokens), str(pace.gap_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            for number in range(num_rounds + 1):
                for client, run in CLIENTS.items():
                    seconds = uvloop.run(run(port, pace))
                    if number:
                        note(report, f"{name}: {client}", name, pace, seconds)
        finally:
            server.kill()


def note(report: Report, title: str, name: str, pace: Pace, seconds: float) -> None:
    """The figures of one round."""
    if name == "single tokens":
        report.sample(f"{title}, per request", "us", 1e6 * seconds / pace.num_requests)
        report.sample(f"{title}, requests per CPU second", "1/s", pace.num_requests / seconds)
    else:
        num_tokens = pace.num_requests * pace.num_tokens
        report.sample(f"{title}, per token", "us", 1e6 * seconds / num_tokens)
        report.sample(f"{title}, tokens per CPU second", "1/s", num_tokens / seconds)


def main() -> None:
    is_quick, path = arguments("bench_client", QUESTION)
    num_rounds = 1 if is_quick else 5
    report = Report("bench_client", QUESTION, {"streams": NUM_STREAMS, "rounds": num_rounds})
    for name in PACES:
        measure(report, name, num_rounds)
    for name, unit in (
        ("paced", "per token"),
        ("single tokens", "per request"),
        ("flat out", "per token"),
    ):
        ours = report.samples(f"{name}: ours (aiohttp), {unit}")
        for other in ("httpx", "openai"):
            theirs = report.samples(f"{name}: {other}, {unit}")
            ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
            report.add(f"{name}: {other} over ours", "x", ratios)
    report.print()
    report.write(path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(int(sys.argv[2]), float(sys.argv[3])))
    else:
        main()
