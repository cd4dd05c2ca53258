"""What the soak's traffic makes of answers: a server says what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.chaos.soak_traffic import Traffic
from tests.support.waiting import wait_until

STREAMED = {"prompt": "a", "stream": True}
WHOLE = {"prompt": "b"}


def answer_of(text: str, **usage: int) -> dict[str, Any]:
    usage = usage or {"completion_tokens": 3}
    return {"choices": [{"index": 0, "text": text, "finish_reason": "length"}], "usage": usage}


def piece(text: str, finish_reason: str | None = None) -> str:
    body = {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}
    return f"data: {json.dumps(body)}\n\n"


END = 'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\ndata: [DONE]\n\n'
GOOD_STREAM = piece("ab") + piece("c", "length") + END
ERROR_PIECE = 'data: {"error": {"code": "worker_lost", "message": "…"}}\n\n'


class Server:
    """Gives the same answer to whoever asks, until it is told another one."""

    def __init__(self) -> None:
        self.status = 200
        self.whole: object = answer_of("abc")
        self.stream = GOOD_STREAM
        self.breaks_off = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        is_stream = body.get("stream")
        content = (self.stream if is_stream else json.dumps(self.whole)).encode()
        kind = "text/event-stream" if is_stream else "application/json"
        size = len(content) + (10 if self.breaks_off else 0)
        writer.write(
            f"HTTP/1.1 {self.status} x\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n"
            "connection: close\r\n\r\n".encode()
            + content
        )
        await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server


@pytest.fixture
async def traffic(server: Server) -> AsyncIterator[Traffic]:
    """One that knows the answers and cancels nothing."""
    url = f"http://127.0.0.1:{server.port}"
    traffic = Traffic(url, [STREAMED, WHOLE], [{}], seed=1)
    traffic.is_excused = lambda *_: True
    traffic.cancelled_share = 0.0
    await traffic.learn(2)
    yield traffic
    await traffic.close()


async def ask_some(traffic: Traffic) -> None:
    stopping = asyncio.Event()
    running = asyncio.create_task(traffic.run(1000.0, 4, stopping))
    enough = traffic.tally.num_requests + 20
    await wait_until(lambda: traffic.tally.num_requests >= enough, "requests are over")
    stopping.set()
    await running


async def test_right_answers_are_whole(traffic: Traffic) -> None:
    await ask_some(traffic)
    assert traffic.tally.num_whole == traffic.tally.num_requests


@pytest.mark.parametrize(
    ("whole", "stream"),
    [
        pytest.param(answer_of("abd"), piece("ab") + piece("d", "length") + END, id="text"),
        pytest.param(answer_of("ab"), piece("ab", "length") + END, id="less"),
        pytest.param(
            answer_of("abc", completion_tokens=4),
            GOOD_STREAM.replace('completion_tokens": 3', 'completion_tokens": 4'),
            id="usage",
        ),
    ],
)
async def test_other_answers_are_wrong(
    server: Server, traffic: Traffic, whole: object, stream: str
) -> None:
    server.whole, server.stream = whole, stream
    await ask_some(traffic)
    assert len(traffic.tally.wrong) == traffic.tally.num_requests


async def test_errors_are_counted_by_kind(server: Server, traffic: Traffic) -> None:
    server.whole = {"error": {"code": "unavailable", "message": "…"}}
    server.status, server.stream = 503, piece("ab") + ERROR_PIECE
    await ask_some(traffic)
    assert set(traffic.tally.errors) == {"unavailable", "worker_lost"}
    assert traffic.tally.errors.total() == traffic.tally.num_requests


async def test_an_answer_that_breaks_off_is_an_error(server: Server, traffic: Traffic) -> None:
    server.breaks_off, server.stream = True, piece("ab")
    await ask_some(traffic)
    assert traffic.tally.errors["RemoteProtocolError"] == traffic.tally.num_requests
    server.breaks_off = False
    server.stream = piece("ab") + piece("c", "length")
    before = traffic.tally.num_whole
    await ask_some(traffic)
    assert traffic.tally.errors["the stream broke off"] > 0
    assert traffic.tally.num_whole >= before


async def test_without_an_excuse_an_error_is_a_failure(server: Server, traffic: Traffic) -> None:
    traffic.is_excused = lambda *_: False
    server.whole = server.stream = piece("ab") + ERROR_PIECE
    server.status = 503
    await ask_some(traffic)
    assert len(traffic.tally.inexcusable) == traffic.tally.num_requests
