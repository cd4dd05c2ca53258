"""The least that a router on gRPC costs for a chat stream: frames out of a table at a set pace, behind the same Envoy.

It reads nothing of the body but what has to be known, and nobody sends it tokens: what it costs is gRPC alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any

import grpc
import uvloop
from google.api.httpbody_pb2 import HttpBody
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pagemesh.v1 import console_pb2, console_pb2_grpc, openai_pb2_grpc

_JSON = "application/json"
_EVENTS = "text/event-stream"


def run(parent: Connection, token_s: float, texts: Sequence[str]) -> None:
    """Body of the process: tells its address, and serves until it is killed."""
    uvloop.run(_serve(parent, token_s, texts))


async def _serve(parent: Connection, token_s: float, texts: Sequence[str]) -> None:
    server = grpc.aio.server()
    probe = health.aio.HealthServicer()
    await probe.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(probe, server)
    # Methods that nobody calls are left out.
    openai = _Answers(token_s, texts)  # type: ignore[abstract]
    openai_pb2_grpc.add_OpenAIServicer_to_server(openai, server)
    console = _Health()  # type: ignore[abstract]
    console_pb2_grpc.add_ConsoleServicer_to_server(console, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    parent.send(f"127.0.0.1:{port}")
    await server.wait_for_termination()


class _Health(console_pb2_grpc.ConsoleServicer):
    async def Health(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleHealthRequest, context: Any
    ) -> AsyncIterator[HttpBody]:
        """GET /health"""
        yield HttpBody(content_type=_JSON, data=b"{}")


class _Answers(openai_pb2_grpc.OpenAIServicer):
    def __init__(self, token_s: float, texts: Sequence[str]) -> None:
        self._token_s = token_s
        self._frames = [_frame({"content": text}, None) for text in texts]
        self._first = _frame({"role": "assistant", "content": ""}, None)
        self._last = _frame({}, "length") + b"data: [DONE]\n\n"

    async def ChatCompletions(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: Any
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/chat/completions"""
        body = json.loads(request.data)
        if not body["stream"]:
            yield HttpBody(content_type=_JSON, data=b'{"choices":[]}')
            return
        loop = asyncio.get_running_loop()
        due = loop.time()
        # As the router's, the first token goes with the role and the last with the end.
        frames = list(islice(cycle(self._frames), body["max_tokens"]))
        frames[0] = self._first + frames[0]
        frames[-1] += self._last
        for number, frame in enumerate(frames):
            if number:
                due += self._token_s
                await asyncio.sleep(due - loop.time())
            yield HttpBody(content_type=_EVENTS, data=frame)


def _frame(delta: dict[str, str], reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    head = {"id": "chatcmpl-0123456789abcdef0123456789abcdef", "created": 1, "model": "bare"}
    chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
