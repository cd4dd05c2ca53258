"""Many streams at once over HTTP/1.1, read as cheaply as Python can: frames are counted, not parsed.

The reader shares the machine's cores with what it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_DEADLINE_S: Final = 120.0
_FRAME: Final = b"data: {"
_END: Final = b"data: [DONE]"


class Arrivals(NamedTuple):
    """Of one stream."""

    sent: float
    """When the request was sent, by time.perf_counter()."""

    times: list[float]
    """When each frame came; several that came at once have the same."""


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes, is_stream: bool) -> None:
        self._request = request
        self._is_stream = is_stream
        self._tail = b""
        self._head = b""
        self.sent = 0.0
        self.times: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.sent = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._head:
            self._head = data
        if self._is_stream:
            seen = self._tail + data
            self.times += [now] * seen.count(_FRAME)
            self._tail = seen[-(len(_FRAME) - 1) :]
            if _END in seen:
                self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_stream:
            self.times.append(time.perf_counter())
        self._finish()

    def _finish(self) -> None:
        if self.done.done():
            return
        if b" 200 " in self._head[:32]:
            self.done.set_result(None)
        else:
            self.done.set_exception(RuntimeError(f"refused: {self._head[:500]!r}"))


def chat_body(model: str, num_tokens: int, *, stream: bool, stream_interval: int = 1) -> bytes:
    """Of a request for so many tokens."""
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }
    # Peers may not know the field.
    return _encode(fields | ({"stream_interval": stream_interval} if stream_interval > 1 else {}))


def prompt_body(model: str, prompt: str) -> bytes:
    """Of a request for one token behind a prompt."""
    fields = {"model": model, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    return _encode(fields | {"temperature": 0})


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode()


async def ask(port: int, path: str, body: bytes, *, stream: bool) -> Arrivals:
    """One request on a connection of its own; RuntimeError when it is refused or never ends."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(
        lambda: _Stream(head.encode() + body, stream), "127.0.0.1", port
    )
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await protocol.done
    except TimeoutError:
        raise RuntimeError(f"port {port} did not end a request in {_DEADLINE_S:g} s") from None
    finally:
        transport.close()
    return Arrivals(protocol.sent, protocol.times)
