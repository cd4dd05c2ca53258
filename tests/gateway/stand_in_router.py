"""A router whose behaviour a request chooses by its model name."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.api import httpbody_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pagemesh.rpc.identity import Identity
from pagemesh.v1 import (
    console_pb2,
    console_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    openai_pb2,
    openai_pb2_grpc,
)


def json_body(value: object) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(content_type="application/json", data=json.dumps(value).encode())


def event(value: object) -> httpbody_pb2.HttpBody:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return httpbody_pb2.HttpBody(content_type="text/event-stream", data=data)


def chat_chunk(text: str) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [choice]}


ROUTE_LINE = '{"policy":"kv_aware","worker":"decode-0","scores":[1.0,0.5]}'
"""What this router says of every route."""


class StandInOpenAI(openai_pb2_grpc.OpenAIServicer):
    """Answers, fails or streams as the request's model says; hands the test what it saw."""

    def __init__(self) -> None:
        self.metadata: queue.Queue[dict[str, str]] = queue.Queue()
        self.ended: queue.Queue[str] = queue.Queue()
        """Model names of streams that the client has left."""
        self.next_token = threading.Semaphore(0)
        """Released once for each token that a "paced" stream may send."""
        self.refusal: grpc.StatusCode | None = None
        """What every chat is answered with, whatever it asks for."""

    def forget(self) -> None:
        """What was told before and read by nobody; streams of before get no more tokens."""
        self.metadata = queue.Queue()
        self.ended = queue.Queue()
        self.next_token = threading.Semaphore(0)

    def ChatCompletions(  # noqa: N802  # the name of the RPC
        self, request: httpbody_pb2.HttpBody, context: grpc.ServicerContext
    ) -> Iterator[httpbody_pb2.HttpBody]:
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        self.metadata.put(metadata)
        if self.refusal is not None:
            context.abort(self.refusal, "ask another one")
        if metadata.get("x-pagemesh-explain") == "true":
            context.send_initial_metadata((("x-pagemesh-route", ROUTE_LINE),))
        asked = json.loads(request.data or b'{"model": "size"}')
        model, _, detail = asked["model"].partition(":")
        if model == "status":
            context.send_initial_metadata((("x-http-status", detail), ("retry-after", "0")))
            error = {"message": "told so", "type": "some_type", "param": "p", "code": "some_code"}
            yield json_body({"error": error})
        elif model == "abort":
            context.abort(grpc.StatusCode[detail], 'not "now",\n100 % ü')
        elif model == "paced":
            context.add_callback(lambda: self.ended.put(detail))
            tokens = self.next_token
            for index in range(1000):
                if not tokens.acquire(timeout=20):
                    return
                yield event(chat_chunk(str(index)))
        elif model == "tenant":
            context.send_initial_metadata((("x-pagemesh-tenant", detail),))
            yield json_body({})
        elif model == "pad":
            yield json_body({"pad": "a" * int(detail)})
        elif model == "size":
            yield json_body({"num_bytes": len(request.data)})
        elif model == "broken":
            yield event(chat_chunk("a"))
            yield event({"error": {"message": "died", "type": "server_error", "code": None}})

    def ListModels(  # noqa: N802  # the name of the RPC
        self, request: openai_pb2.OpenAIListModelsRequest, context: grpc.ServicerContext
    ) -> Iterator[httpbody_pb2.HttpBody]:
        yield json_body({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def GetModel(  # noqa: N802  # the name of the RPC
        self, request: openai_pb2.OpenAIGetModelRequest, context: grpc.ServicerContext
    ) -> Iterator[httpbody_pb2.HttpBody]:
        yield json_body({"id": request.model, "object": "model"})


class StandInConsole(console_pb2_grpc.ConsoleServicer):
    """Is well."""

    def Health(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleHealthRequest, context: grpc.ServicerContext
    ) -> Iterator[httpbody_pb2.HttpBody]:
        yield json_body({})


class StandInInference(inference_pb2_grpc.InferenceServicer):
    """The typed API, enough to see that native gRPC passes untouched."""

    def Generate(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        context.send_initial_metadata((("x-http-status", "418"),))
        yield inference_pb2.GenerateResponse(text=request.text)
        if request.model == "abort":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such model")


class StandInRouter:
    """The router process of these tests, as a server in this process."""

    def __init__(self, port: int, identity: Identity | None = None) -> None:
        # What they lack is answered with UNIMPLEMENTED.
        self.openai = StandInOpenAI()  # type: ignore[abstract]
        self.address = f"127.0.0.1:{port}"
        self._health = health.HealthServicer()
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(16), options=options)
        openai_pb2_grpc.add_OpenAIServicer_to_server(self.openai, self._server)
        console_pb2_grpc.add_ConsoleServicer_to_server(
            StandInConsole(),  # type: ignore[abstract]
            self._server,
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(
            StandInInference(),  # type: ignore[abstract]
            self._server,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(["pagemesh.v1.OpenAI"], self._server)
        if identity is None:
            assert self._server.add_insecure_port(self.address)
        else:
            assert self._server.add_secure_port(self.address, identity.server_credentials())
        self._server.start()

    def set_serving(self, serving: bool) -> None:
        known = health_pb2.HealthCheckResponse
        self._health.set("", known.SERVING if serving else known.NOT_SERVING)

    def stop(self) -> None:
        self._server.stop(grace=0).wait(10)
