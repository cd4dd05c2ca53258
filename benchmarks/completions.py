"""A client of OpenAI's completions that notes when tokens come: the same one for every HTTP server.

A connection for each request, HTTP/1.1 with chunks and no more, so that the client takes little of the
cores that it shares with what it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from workload import Request

_DATA = b"data: {"


async def stream_completion(port: int, model: str, request: Request) -> tuple[float, float]:
    """When the first and the last token came, by time.perf_counter().

    RuntimeError when the server refuses, or gives another number of tokens than was asked for.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_post(model, request))
        first = last = 0.0
        num_tokens = None
        async for event in _events(reader):
            now = time.perf_counter()
            for choice in event.get("choices", ()):
                if choice["text"] or choice["finish_reason"]:
                    first, last = first or now, now
            if usage := event.get("usage"):
                num_tokens = usage["completion_tokens"]
    finally:
        writer.close()
    if num_tokens != request.num_tokens:
        raise RuntimeError(f"{num_tokens} tokens came instead of {request.num_tokens}")
    return first, last


def _post(model: str, request: Request) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": request.prompt,
            "max_tokens": request.num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The data of server-sent events, each as soon as its line is whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"the server refused: {(head + await reader.read()).decode()}")
    line = b""
    while size := int(await reader.readline(), 16):
        *lines, line = (line + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
        for whole in lines:
            if whole.startswith(_DATA):
                event: dict[str, Any] = json.loads(whole.removeprefix(b"data: "))
                if "error" in event:
                    raise RuntimeError(f"the server failed: {event}")
                yield event
