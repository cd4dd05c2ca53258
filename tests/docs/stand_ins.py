"""Programs that a document's commands find first: each does what the real one does, so that a test can go on.

What runs until it is told to stop is started in the background and waited for; what would be asked at port 8000
is asked at the port of the tests' mesh; curl fails when the answer is an error.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.hygiene.tree import ROOT

DESK: Final = "PAGEMESH_DOCS_DESK"
"""Variable of the environment that names the folder of the desk."""
PORTS: Final = "ports.json"
SERVERS: Final = "servers"
NAMES: Final = ("pagemesh", "make", "curl", "python", "python3", "pip", "envoy", "pkill")

_PARTS: Final = {"router", "decode", "prefill", "kvstore"}
_MESHES: Final = {"up", "serve"}
_HTTP: Final = {*_MESHES, "gateway"}
_ONCE: Final = {"--help", "-h", "--print-config"}
START_DEADLINE_S: Final = 60.0


def main(name: str) -> NoReturn:
    """Be the program of this name."""
    arguments = sys.argv[1:]
    match name:
        case "pagemesh":
            _pagemesh(arguments)
        case "make":
            _make(arguments)
        case "curl":
            _replace_by([_real("curl"), "--silent", "--show-error", "--fail-with-body", *arguments])
        case "envoy":
            port = _port_of("8000")
            _serve([_real("envoy"), *arguments], lambda: _connects(port))
        case "pkill":
            _pkill(arguments)
        case "pip":
            # The tests' own environment stays as it is: what it lacks is found nowhere.
            _replace_by([sys.executable, "-m", "pip", *arguments, "--no-index"])
        case _:
            _replace_by([sys.executable, *arguments])


def _pagemesh(arguments: list[str]) -> NoReturn:
    command = [sys.executable, "-P", "-m", "pagemesh.cli", *arguments]
    kind = arguments[0] if arguments else ""
    if kind in _HTTP and "--port" not in arguments:
        command += ["--port", str(_port_of("8000"))]
    if kind == "doctor" and arguments[1:2] in ([], ["--json"]):
        command += ["--url", f"http://127.0.0.1:{_port_of('8000')}"]
    if kind not in _PARTS | _HTTP or _ONCE & set(arguments):
        _replace_by(command)
    if kind in _PARTS and "--port" not in arguments:
        command += ["--port", str(_a_free_port())]
    port = int(command[command.index("--port") + 1])
    if kind in _MESHES:
        _serve(command, lambda: "Press Ctrl-C" in _output_of(os.getpid()))
    if kind == "gateway" or "--mesh-cert" in arguments:
        _serve(command, lambda: _connects(port))
    _serve(command, lambda: _serves(port))


def _make(arguments: list[str]) -> NoReturn:
    if arguments[:1] != ["run"]:
        sys.exit(f"make {' '.join(arguments)}: list it in tests/docs/elsewhere.toml")
    # What it would run, behind setting things up.
    told = subprocess.run(
        [_real("make"), "-n", "-C", str(ROOT), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in told.stdout.splitlines() if line.startswith("exec "))
    _, program, *words = shlex.split(line)
    assert Path(program).name == "pagemesh", line
    _pagemesh(words)


def _pkill(arguments: list[str]) -> NoReturn:
    """pkill -SIGNAL -f PATTERN, among the processes of this desk."""
    sent, flag, pattern = arguments
    assert flag == "-f", "only whole command lines are looked at"
    notes = (_desk() / SERVERS).glob("*.json")
    found = [
        process
        for note in notes
        for process in psutil.Process(json.loads(note.read_text())["pid"]).children(recursive=True)
        if re.search(pattern, " ".join(process.cmdline()))
    ]
    for process in found:
        subprocess.run(["kill", sent, str(process.pid)], check=True)
    sys.exit(0 if found else 1)


def _serve(command: Sequence[str], is_ready: Callable[[], bool]) -> NoReturn:
    """Start it in the background; end when it can be used, with what it has printed."""
    output = _output_file(os.getpid())
    with output.open("w") as stdout:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    note = _desk() / SERVERS / f"{process.pid}.json"
    note.write_text(json.dumps({"pid": process.pid, "command": command}))
    deadline = time.monotonic() + START_DEADLINE_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            print(output.read_text())
            sys.exit(process.returncode or 1)
        time.sleep(0.05)
    # What `pagemesh up` says only where the machine is busy is in no document.
    lines = output.read_text().splitlines()
    print(*(line for line in lines if "still starting after" not in line), sep="\n", flush=True)
    sys.exit(0)


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _serves(port: int) -> bool:
    """By gRPC's health check."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no methods
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _replace_by(command: Sequence[str]) -> NoReturn:
    os.execv(command[0], list(command))


def _real(name: str) -> str:
    """The program itself, behind the desk's own."""
    ours = str(_desk() / ".venv/bin")
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != ours)
    found = shutil.which(name, path=path)
    if found is None:
        sys.exit(f"{name} is not installed here")
    return found


def _desk() -> Path:
    return Path(os.environ[DESK])


def _port_of(port: str) -> int:
    return int(json.loads((_desk() / PORTS).read_text())[port])


def _a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _output_file(pid: int) -> Path:
    return _desk() / SERVERS / f"{pid}.txt"


def _output_of(pid: int) -> str:
    return _output_file(pid).read_text()
