"""Calls of one router, past the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from pagemesh.v1 import (
    console_pb2,
    console_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    types_pb2,
)
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh, option

Answers = Iterator[inference_pb2.GenerateResponse]


def address_of(mesh: Mesh, router: str) -> str:
    process = mesh.parts()[router]
    return f"{option(process, '--host') or '127.0.0.1'}:{option(process, '--port')}"


@contextmanager
def answers(address: str, prompt: list[int], max_tokens: int) -> Iterator[Answers]:
    """The answer of one router to a prompt, as it comes."""
    request = inference_pb2.GenerateRequest(
        model=MODEL,
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=types_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )
    with grpc.insecure_channel(address) as channel:
        yield inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=DEADLINE_S)


def ask(address: str, prompt: list[int], max_tokens: int = 2) -> list[int]:
    with answers(address, prompt, max_tokens) as pieces:
        return [token_id for piece in pieces for token_id in piece.token_ids]


def latest_requests(address: str) -> list[dict[str, Any]]:
    """Those that one router runs, and the last ones that are over, as it tells of them."""
    with grpc.insecure_channel(address) as channel:
        stub = console_pb2_grpc.ConsoleStub(channel)
        (body,) = stub.Mesh(console_pb2.ConsoleMeshRequest(), timeout=DEADLINE_S)
    return list(json.loads(body.data)["requests"])


def num_workers(address: str) -> tuple[int, int]:
    """Decode and prefill workers, as one router sees them."""
    with grpc.insecure_channel(address) as channel:
        request = console_pb2.ConsoleHealthRequest()
        try:
            (body,) = console_pb2_grpc.ConsoleStub(channel).Health(request, timeout=DEADLINE_S)
        except grpc.RpcError:
            return (0, 0)
    health = json.loads(body.data)
    return (health["decode_workers"], health["prefill_workers"])
