"""What the machine can do without pagemesh: memcpy, and 1 MiB messages over a bare socket.

The two ends of a socket are two processes, as workers are. Bytes are sent from a large buffer and
received into another one, so that neither lies in a cache.
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np

MESSAGE_BYTES = 1 << 20
_DEADLINE_S = 60.0
RAW: Final = ("memcpy", "raw TCP", "raw UDS")


class Transfer(NamedTuple):
    """What moving some bytes took."""

    seconds: float
    sender_cpu: float
    """CPU seconds of the sender's process."""
    receiver_cpu: float
    """CPU seconds of the receiver's process."""

    @property
    def cpu(self) -> float:
        """CPU seconds of both."""
        return self.sender_cpu + self.receiver_cpu


class RawPair:
    """Two processes with a TCP and a unix socket between them."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._folder = tempfile.TemporaryDirectory()
        spawn = multiprocessing.get_context("spawn")
        path = str(Path(self._folder.name) / "socket")
        self._receiver, theirs = spawn.Pipe()
        self._processes = [spawn.Process(target=_receive, args=(theirs, path, num_bytes))]
        self._processes[0].start()
        theirs.close()
        tcp = self._answer(self._receiver)
        self._sender, theirs = spawn.Pipe()
        self._processes.append(spawn.Process(target=_send, args=(theirs, path, tcp, num_bytes)))
        self._processes[1].start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sender.close()
        self._receiver.close()
        for process in self._processes:
            process.join(_DEADLINE_S)
        self._folder.cleanup()

    def run(self, kind: str) -> Transfer:
        """Move the bytes once, in one of the ways in RAW."""
        self._receiver.send(kind)
        sender_cpu = 0.0
        if kind != "memcpy":
            self._sender.send(kind)
            sender_cpu = float(self._answer(self._sender))
        seconds, receiver_cpu = self._answer(self._receiver)
        return Transfer(seconds, sender_cpu, receiver_cpu)

    def _answer(self, connection: Connection) -> Any:
        if not connection.poll(_DEADLINE_S):
            raise RuntimeError(f"a peer said nothing for {_DEADLINE_S:g} s")
        return connection.recv()


def _receive(parent: Connection, path: str, num_bytes: int) -> None:
    """Body of the receiver: a kind in, (seconds, CPU seconds) out, until the parent closes the pipe."""
    target = np.ones(num_bytes, np.uint8)
    source = np.ones(num_bytes, np.uint8)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix,
    ):
        unix.bind(path)
        unix.listen()
        parent.send(tcp.getsockname())
        peers = {"raw TCP": tcp.accept()[0], "raw UDS": unix.accept()[0]}
        while (kind := _next(parent)) is not None:
            if kind == "memcpy":
                began, cpu = time.perf_counter(), time.process_time()
                for at in range(0, num_bytes, MESSAGE_BYTES):
                    target[at : at + MESSAGE_BYTES] = source[at : at + MESSAGE_BYTES]
            else:
                began, cpu = _receive_all(peers[kind], target.data)
            parent.send((time.perf_counter() - began, time.process_time() - cpu))
        for peer in peers.values():
            peer.close()


def _receive_all(peer: socket.socket, target: memoryview) -> tuple[float, float]:
    """Fill the buffer; gives when the first bytes came and the CPU time spent until then."""
    cpu = time.process_time()
    end = peer.recv_into(target[:MESSAGE_BYTES])
    began = time.perf_counter()
    while end < len(target):
        count = peer.recv_into(target[end : end + MESSAGE_BYTES])
        assert count, "the sender is gone"
        end += count
    return began, cpu


def _send(parent: Connection, path: str, tcp: tuple[str, int], num_bytes: int) -> None:
    """Body of the sender: a kind in, CPU seconds out, until the parent closes the pipe."""
    source = np.ones(num_bytes, np.uint8).data
    with (
        socket.create_connection(tcp) as over_tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as over_unix,
    ):
        over_unix.connect(path)
        peers = {"raw TCP": over_tcp, "raw UDS": over_unix}
        while (kind := _next(parent)) is not None:
            cpu = time.process_time()
            for at in range(0, num_bytes, MESSAGE_BYTES):
                peers[kind].sendall(source[at : at + MESSAGE_BYTES])
            parent.send(time.process_time() - cpu)


def _next(parent: Connection) -> str | None:
    try:
        return str(parent.recv())
    except EOFError:
        return None
