"""HTTP requests and answers as the gateway passes them through the `OpenAI` service."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
from google.api.httpbody_pb2 import HttpBody


class Answer(NamedTuple):
    """An HTTP answer as the gateway would make it."""

    status: int
    headers: dict[str, str]
    content_type: str
    data: bytes

    def json(self) -> Any:
        return json.loads(self.data)

    def events(self) -> list[Any]:
        """Payloads of the event stream, after a check that it is one; comments are left out."""
        assert self.content_type == "text/event-stream; charset=utf-8"
        text = self.data.decode()
        assert text.endswith("\n\n")
        frames = [frame for frame in text[:-2].split("\n\n") if not frame.startswith(":")]
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        payloads = [frame.removeprefix("data: ") for frame in frames]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    def named_events(self) -> list[Any]:
        """Payloads of an event stream whose events have their payload's type as their name."""
        assert self.content_type == "text/event-stream; charset=utf-8"
        found = []
        for frame in self.data.decode().removesuffix("\n\n").split("\n\n"):
            if frame.startswith(":"):
                continue
            name, data = frame.split("\n")
            payload = json.loads(data.removeprefix("data: "))
            assert name == f"event: {payload['type']}"
            found.append(payload)
        return found


def pairs(metadata: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((key.replace("_", "-"), value) for key, value in metadata.items())


def http_body(body: object) -> HttpBody:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpBody(content_type="application/json", data=data)


async def nothing() -> None:
    """Happens to an answer that is left alone."""


async def read(
    call: grpc.aio.UnaryStreamCall[Any, HttpBody],
    disturb: Callable[[], Awaitable[object]] = nothing,
    num_pieces: int = 0,
) -> Answer:
    """Read an answer to its end; behind its first pieces it is disturbed."""
    pieces = aiter(call)
    bodies = [await anext(pieces) for _ in range(num_pieces)]
    await disturb()
    bodies += [body async for body in pieces]
    headers = {str(key): str(value) for key, value in await call.initial_metadata()}
    return Answer(
        status=int(headers.get("x-http-status", 200)),
        headers=headers,
        content_type=bodies[0].content_type,
        data=b"".join(body.data for body in bodies),
    )
