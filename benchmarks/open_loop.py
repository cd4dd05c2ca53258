"""Requests that come whether or not those before them have ended, and what becomes of each.

A connection for each request, as cheaply as Python can read it: the client shares the cores with what it measures.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from workload import make_prompt

_FRAME: Final = b'"text"'
_HEAD_END: Final = b"\r\n\r\n"
_RETRY_AFTER: Final = re.compile(rb"retry-after: (\d+)")
_PATIENCE_S: Final = 120.0
REFUSED: Final = 429


@dataclass
class Outcome:
    """Of one request; times are of time.perf_counter()."""

    sent: float
    status: int = 0
    """0 when nothing came."""
    first: float = 0.0
    """When the first tokens came; 0 if none did."""
    end: float = 0.0
    is_whole: bool = False
    """Whether the answer came to its end."""
    retry_after: int | None = None

    @property
    def seconds(self) -> float:
        """From its sending to its end."""
        return self.end - self.sent


@dataclass(frozen=True)
class Asking:
    """How requests are made."""

    port: int
    model: str
    vocab_size: int
    num_prompt_tokens: int
    num_tokens: int
    headers: Mapping[str, str] = field(default_factory=dict)

    def request(self, seed: int) -> bytes:
        """One whose prompt nobody has asked before."""
        fields = {
            "model": self.model,
            "prompt": make_prompt(self.num_prompt_tokens, self.vocab_size, seed),
            "max_tokens": self.num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            # Told in a few pieces: what a token costs the client is not the question.
            "stream_interval": 16,
        }
        body = json.dumps(fields).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (
            "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{head}\r\n"
        ).encode() + body


class _Exchange(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._seen = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcome = Outcome(time.perf_counter())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if not self.outcome.first and _FRAME in self._seen:
            self.outcome.first = time.perf_counter()

    def connection_lost(self, exc: Exception | None) -> None:
        outcome, seen = self.outcome, bytes(self._seen)
        outcome.end = time.perf_counter()
        head, _, body = seen.partition(_HEAD_END)
        if head.startswith(b"HTTP/1.1 "):
            outcome.status = int(head[9:12])
        outcome.is_whole = (
            outcome.status == 200 and b"data: [DONE]" in body and b'"error"' not in body
        )
        if found := _RETRY_AFTER.search(head):
            outcome.retry_after = int(found.group(1))
        if not self.done.done():
            self.done.set_result(None)


async def ask(port: int, request: bytes) -> Outcome:
    """Send it and wait for its end."""
    exchange = _Exchange(request)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: exchange, "127.0.0.1", port
            )
            try:
                await exchange.done
            finally:
                transport.close()
    except (TimeoutError, OSError):
        exchange.outcome.end = time.perf_counter()
    return exchange.outcome


async def closed_loop(asking: Asking, num_clients: int, seconds: float, seed: int) -> list[Outcome]:
    """So many clients, each of which sends its next request when the last one has ended."""
    outcomes: list[Outcome] = []
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        count = 0
        while time.perf_counter() < until:
            count += 1
            request = asking.request(seed + number * 100_000 + count)
            outcomes.append(await ask(asking.port, request))

    await asyncio.gather(*(client(number) for number in range(num_clients)))
    return outcomes


async def poisson(
    asking: Asking, per_second: float, seconds: float, seed: int, *, stays: bool = True
) -> list[Outcome]:
    """Requests at random times, so many in a second; what has ended, and all that were sent if clients stay for it."""
    draws = random.Random(seed)
    at, due = 0.0, []
    while (at := at + draws.expovariate(per_second)) < seconds:
        # Made beforehand: at high rates that takes its time.
        due.append((at, asking.request(draws.getrandbits(40))))
    begin, tasks = time.perf_counter(), []
    for at, request in due:
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(asking.port, request)))
    if not stays:
        for task in tasks:
            task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    return [outcome for outcome in ended if isinstance(outcome, Outcome)]


def statuses(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many ended how: whole, cut off behind a 200, or with another status."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        name = str(outcome.status)
        if outcome.status == 200:
            name = "200" if outcome.is_whole else "200, then an error"
        counts[name] = counts.get(name, 0) + 1
    return counts
