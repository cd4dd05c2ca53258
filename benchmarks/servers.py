"""What answers while requests keep coming: a mesh, a peer's HTTP server, or a peer's engine alone.

A peer without a server of its own is asked in its script's process, without any network: that flatters it
beside the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import psutil
from clients import Client, OverGrpc, OverHttp
from engine_process import ENGINES, EngineSettings
from mesh import Mesh, free_port, is_healthy
from peers import PEERS, python_of, start

_START_DEADLINE_S = 300.0
_STOP_DEADLINE_S = 30.0


def start_servers(
    stack: ExitStack, settings: EngineSettings, peers: Sequence[str]
) -> dict[str, Client]:
    """A mesh by each of its protocols, and the peers; all run until the stack ends."""
    model = Path(settings.model)
    mesh = stack.enter_context(
        Mesh(
            *("--prefill", "0", "--threads", str(settings.threads)),
            *("--max-num-seqs", str(settings.max_num_seqs)),
            *("--kv-cache-memory", str(settings.kv_cache_memory)),
            model=model,
        )
    )
    mesh.await_ready()
    clients: dict[str, Client] = {
        "pagemesh, gRPC": OverGrpc(mesh.port),
        "pagemesh, HTTP": OverHttp(mesh.port, model.name),
    }
    for name in peers:
        if PEERS[name].online == "server":
            port = free_port()
            start_server(stack, name, settings, port)
            clients[f"{name}, HTTP"] = OverHttp(port, model.name)
        else:
            clients[f"{name}, no network"] = stack.enter_context(start(name, settings))
    return clients


def start_server(
    stack: ExitStack, name: str, settings: EngineSettings, port: int
) -> subprocess.Popen[str]:
    """A peer's HTTP server that can answer, until the stack ends; RuntimeError with its log if it never can."""
    process = _start_server(name, settings, port)
    stack.callback(_stop, process)
    return process


def _start_server(name: str, settings: EngineSettings, port: int) -> subprocess.Popen[str]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [str(python_of(name)), str(ENGINES / PEERS[name].script), "--serve", str(port)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(settings.threads), "HF_HUB_OFFLINE": "1"},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(settings)) + "\n")
        process.stdin.close()
        deadline = time.monotonic() + _START_DEADLINE_S
        while time.monotonic() < deadline and process.poll() is None:
            if is_healthy(port):
                return process
            time.sleep(0.2)
        _stop(process)
        log.seek(0)
        raise RuntimeError(f"{name} did not come up:\n{log.read()[-3000:]}")


def _stop(process: subprocess.Popen[str]) -> None:
    """End a server and whatever it has started."""
    if process.poll() is not None:
        return
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        if child.is_running():
            child.kill()
