"""An OpenAI server that is no mesh, with known delays: FastAPI on uvicorn, in a thread of the test."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from tests.support.late_imports import fastapi
from tests.support.ports import free_port

KEY = "sk-right"
_START_S = 20.0


@dataclass
class PacedServer:
    """How it answers, and what it was asked."""

    port: int
    first_s: float = 0.0
    """Until the first token."""
    gap_s: float = 0.0
    """Between two tokens."""
    tells_usage: bool = True
    wants_key: bool = False
    breaks_off: bool = False
    """In the middle of each answer."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def app(self) -> fastapi.FastAPI:
        app = fastapi.FastAPI()
        app.get("/v1/models")(self._models)
        app.post("/v1/completions")(self._answer)
        app.post("/v1/chat/completions")(self._answer)
        return app

    async def _models(self) -> Any:
        return {"object": "list", "data": [{"id": "paced"}, {"id": "other"}]}

    async def _answer(self, request: fastapi.Request) -> fastapi.Response:
        body = await request.json()
        if self.wants_key and request.headers.get("authorization") != f"Bearer {KEY}":
            return fastapi.responses.JSONResponse({"error": {"message": "no such key"}}, 401)
        if body["model"] != "paced":
            return fastapi.responses.JSONResponse({"error": {"message": "no such model"}}, 404)
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        return fastapi.responses.StreamingResponse(
            self._events(body), media_type="text/event-stream"
        )

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        began_at = time.perf_counter()
        is_chat = "messages" in body
        num_tokens = body.get("max_tokens") or body["max_completion_tokens"]
        if is_chat:
            yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number in range(num_tokens):
            due = began_at + self.first_s + number * self.gap_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if self.breaks_off and number > num_tokens // 2:
                return
            piece = {"delta": {"content": " put"}} if is_chat else {"text": " put"}
            yield _event({"choices": [piece]})
        yield _event({"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
        if self.tells_usage:
            usage = {"prompt_tokens": 7, "completion_tokens": num_tokens}
            yield _event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


@contextmanager
def running_paced_server(**settings: Any) -> Iterator[PacedServer]:
    """It listens on a port of its own until the end."""
    paced = PacedServer(free_port(), **settings)
    config = uvicorn.Config(paced.app, "127.0.0.1", paced.port, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + _START_S
    while not server.started:
        assert time.monotonic() < deadline, "uvicorn starts"
        time.sleep(0.01)
    try:
        yield paced
    finally:
        server.should_exit = True
        thread.join(10)
