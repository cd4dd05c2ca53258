"""The least that a Python server does for a chat stream: FastAPI on uvicorn, tokens out of a table at a set pace.

It tokenizes nothing, routes nothing, and nobody sends it tokens: what it costs is HTTP and JSON alone.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse


def run(parent: Connection, port: int, token_s: float, texts: Sequence[str]) -> None:
    """Body of the process: serves until it is killed."""
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> StreamingResponse | JSONResponse:
        body = await request.json()
        answer = _Answer(body, texts)
        if body["stream"]:
            return StreamingResponse(answer.frames(token_s), media_type="text/event-stream")
        return JSONResponse(answer.whole())

    parent.send(None)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


class _Answer:
    def __init__(self, body: dict[str, Any], texts: Sequence[str]) -> None:
        self._num_tokens: int = body["max_tokens"]
        self._texts = cycle(texts)
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body["model"],
        }

    def whole(self) -> dict[str, Any]:
        text = "".join(next(self._texts) for _ in range(self._num_tokens))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return {**self._head, "object": "chat.completion", "choices": [choice]}

    async def frames(self, token_s: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        due = loop.time()
        yield self._frame({"role": "assistant", "content": ""}, None)
        for number in range(self._num_tokens):
            if number:
                due += token_s
                await asyncio.sleep(due - loop.time())
            yield self._frame({"content": next(self._texts)}, None)
        yield self._frame({}, "length")
        yield b"data: [DONE]\n\n"

    def _frame(self, delta: dict[str, str], reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"
