"""A real `pagemesh up` in a process of its own, and what a test needs to look into it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import httpx
import psutil

from tests.support.late_imports import openai
from tests.support.metrics import metric, num_used_blocks
from tests.support.ports import free_port

START_DEADLINE_S = 90.0
DEADLINE_S = 30.0
RETURN_DEADLINE_S = 60.0
"""For a process that has ended: most of it is its start, which a busy machine draws out."""
MODEL = "demo"

Found = TypeVar("Found")


def until(get: Callable[[], Found], what: str, deadline_s: float = DEADLINE_S) -> Found:
    """Call `get` until it gives something true; fail, naming `what`, when that takes too long."""
    deadline = time.monotonic() + deadline_s
    while not (found := get()):
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.02)
    return found


def can_connect(address: str) -> bool:
    """Whether somebody listens on host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def up_command(*arguments: str) -> list[str]:
    """The command line of `pagemesh up`."""
    return [sys.executable, "-P", "-m", "pagemesh.cli", "up", *arguments]


def option(process: psutil.Process, flag: str) -> str | None:
    """Value of a flag on the command line of a process."""
    words = process.cmdline()
    return words[words.index(flag) + 1] if flag in words else None


def tell_to_stop(mesh: Mesh, part: str) -> Callable[[], None]:
    """SIGTERM to a part, the gateway's is Envoy's supervisor; gives a function that waits until it serves again."""
    wait_until_back = _expect_back(mesh, part)
    process: psutil.Process | None = mesh.parts()[part]
    if process is not None and part == "gateway":
        process = process.parent()
    assert process is not None, "it has a supervisor"
    process.send_signal(signal.SIGTERM)
    return wait_until_back


def _expect_back(mesh: Mesh, part: str) -> Callable[[], None]:
    """Before a part ends."""
    num_returns = mesh.output.count(f"{part} serves again")

    def wait_until_back() -> None:
        until(
            lambda: mesh.output.count(f"{part} serves again") > num_returns,
            f"{part} serves again",
            RETURN_DEADLINE_S,
        )

    return wait_until_back


class Mesh:
    """A running mesh, seen from outside."""

    def __init__(self, process: subprocess.Popen[str], address: str, output: Path) -> None:
        self.process = process
        self.address = address
        self.url = f"http://{self.address}"
        self.logs = output.parent / "logs"
        self._output = output
        self._metrics_addresses: dict[str, str] = {}
        self._ports: dict[str, set[int]] = {"router": set(), "kvstore": set()}
        # A connection that is kept may lead to who was there before.
        self.http = httpx.Client(timeout=5, limits=httpx.Limits(max_keepalive_connections=0))
        self._client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S
        )

    @property
    def output(self) -> str:
        """What `pagemesh up` has printed so far."""
        return self._output.read_text()

    def logged(self) -> dict[str, str]:
        """Everything that it and its parts said so far, by name."""
        logs = {log.name: log.read_text() for log in sorted(self.logs.glob("*"))}
        return {"pagemesh up": self.output, **logs}

    def log(self, part: str, event: str) -> list[dict[str, Any]]:
        """What a part has logged under this name."""
        *lines, _ = (self.logs / f"{part}.log").read_text().split("\n")  # the last is being written
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == event]

    def client(self) -> openai.OpenAI:
        """The real client, without retries that would hide errors; closed with the mesh."""
        return self._client

    def parts(self) -> dict[str, psutil.Process]:
        """The processes by name, as they are now."""
        parts = {}
        equals: dict[str, dict[int, psutil.Process]] = {command: {} for command in self._ports}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                words = process.cmdline()
                if process.name() == "envoy":
                    parts["gateway"] = process
                elif "pagemesh.cli" in words:
                    command = words[words.index("pagemesh.cli") + 1]
                    parts[option(process, "--worker-id") or command] = process
                    if command in equals:
                        equals[command][int(option(process, "--port") or 0)] = process
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        for command, processes in equals.items():
            # Several bear numbers, in order of the ports, which they keep when they are started again.
            ports = self._ports[command]
            ports.update(processes)
            if len(ports) > 1:
                parts.pop(command, None)
                for index, port in enumerate(sorted(ports)):
                    if port in processes:
                        parts[f"{command}-{index}"] = processes[port]
        return parts

    def workers(self) -> list[str]:
        """Names of the workers."""
        return [name for name in self.parts() if name.startswith(("prefill-", "decode-"))]

    def metric(self, part: str, name: str, **labels: str) -> float:
        """Sum of a metric's samples over the labels that are not given."""
        return metric(self.metrics_page(part), name, **labels)

    def metrics_page(self, part: str) -> str:
        """All its metrics, as they are at one moment."""
        # Looked up once: a part that is restarted keeps its ports.
        if part not in self._metrics_addresses:
            process = self.parts()[part]
            host, port = (option(process, flag) for flag in ("--host", "--metrics-port"))
            self._metrics_addresses[part] = f"{host or '127.0.0.1'}:{port}"
        return self.http.get(f"http://{self._metrics_addresses[part]}/metrics").text

    def num_used_blocks(self, worker: str) -> int:
        """Blocks that requests or streams own."""
        return num_used_blocks(self.metrics_page(worker))

    def wait_until_idle(self) -> None:
        """Fail unless all workers are there, and every block of theirs comes back soon."""
        for worker in self.workers():
            self.wait_until_worker_idle(worker)

    def wait_until_worker_idle(self, worker: str) -> None:
        """Fail unless every block of one worker comes back soon."""
        until(lambda: self.num_used_blocks(worker) == 0, f"{worker} is idle")

    def kill(self, part: str, *, engine: bool = False) -> Callable[[], None]:
        """kill -9 of a part or its engine; gives a function that waits until it serves again."""
        wait_until_back = _expect_back(self, part)
        process = self.parts()[part]
        if engine:
            (process,) = process.children()
        process.kill()
        process.wait(10)
        return wait_until_back

    def wait_until_complete(self) -> None:
        """Wait until the router reaches both workers."""
        until(
            lambda: self.health().items() >= {"decode_workers": 1, "prefill_workers": 1}.items(),
            "the router reaches all workers",
        )

    def health(self) -> dict[str, Any]:
        """What the gateway's /health says; empty while nobody answers."""
        try:
            return dict(self.http.get(f"{self.url}/health").json())
        except (httpx.TransportError, ValueError):
            return {}


def is_alive(process: psutil.Process) -> bool:
    """Whether the very process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def slowed(*processes: psutil.Process) -> Iterator[None]:
    """They may compute for a tenth of the time, so that nothing ends early, however fast this machine is."""
    over = Event()

    def alternate() -> None:
        while not over.is_set():
            each(psutil.Process.suspend)
            over.wait(0.05)
            each(psutil.Process.resume)
            over.wait(0.005)

    def each(act: Callable[[psutil.Process], None]) -> None:
        for process in processes:
            # One may be killed meanwhile.
            with suppress(psutil.NoSuchProcess):
                act(process)

    with ThreadPoolExecutor(1) as thread:
        alternating = thread.submit(alternate)
        try:
            yield
        finally:
            over.set()
        alternating.result(DEADLINE_S)


def tracebacks(mesh: Mesh) -> list[str]:
    """Lines with one in what the parts have logged, by the name of the log."""
    logs = sorted(mesh.logs.glob("*.log"))
    assert logs, "no part has a log"
    lines = [(log.name, line) for log in logs for line in log.read_text().splitlines()]
    return [f"{name}: {line}" for name, line in lines if "Traceback" in line]


def leftovers(mesh: Mesh) -> Callable[[], list[str]]:
    """A question to ask after the end: which processes and ports of now are still there."""
    supervisor = psutil.Process(mesh.process.pid)
    processes = [supervisor, *supervisor.children(recursive=True)]
    addresses = [mesh.address]
    for process in processes[1:]:
        for flag in ("--port", "--metrics-port"):
            if port := option(process, flag):
                addresses.append(f"127.0.0.1:{port}")

    def ask() -> list[str]:
        running = [str(process) for process in processes if is_alive(process)]
        return running + [address for address in addresses if can_connect(address)]

    return ask


@contextmanager
def running_mesh(folder: Path, *arguments: str) -> Iterator[Mesh]:
    """A mesh that answers, with the demo model unless told otherwise; gone afterwards."""
    port = free_port()
    command = up_command("--port", str(port), "--log-dir", str(folder / "logs"), *arguments)
    with running_command(command, f"127.0.0.1:{port}", folder) as mesh:
        yield mesh


@contextmanager
def running_command(
    command: Sequence[str],
    address: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Mesh]:
    """The mesh of a command that does what `pagemesh up` does, with its gateway at the address.

    In this process's environment unless another one is given.
    """
    output = folder / "output.txt"
    with output.open("w") as stdout:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            # Ctrl-C in a terminal that runs the tests is not meant for the mesh.
            start_new_session=True,
        )
    mesh = Mesh(process, address, output)
    try:
        until(
            lambda: "Press Ctrl-C" in mesh.output or process.poll() is not None,
            "pagemesh up answers",
            START_DEADLINE_S,
        )
        assert process.poll() is None, mesh.output
        yield mesh
    finally:
        mesh.client().close()
        mesh.http.close()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise
