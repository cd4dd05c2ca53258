"""What the machine can do without pagemesh: memcpy, and 1 MiB messages over a bare socket.

The two ends of a socket are two processes, as workers are. Bytes are sent from a large buffer and
received into another one, so that neither lies in a cache.
"""

from __future__ import annotations

import socket
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np
from child import Child, questions

MESSAGE_BYTES = 1 << 20
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

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = str(Path(folder) / "socket")
            self._receiver = stack.enter_context(
                Child("the receiver at bare sockets", _receive, path, self._num_bytes)
            )
            tcp = self._receiver.answer()
            self._sender = stack.enter_context(
                Child("the sender at bare sockets", _send, path, tcp, self._num_bytes)
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self, kind: str) -> Transfer:
        """Move the bytes once, in one of the ways in RAW."""
        self._receiver.tell(kind)
        sender_cpu = 0.0 if kind == "memcpy" else self._sender.ask(kind)
        seconds, receiver_cpu = self._receiver.answer()
        return Transfer(seconds, sender_cpu, receiver_cpu)


def _receive(parent: Connection, path: str, num_bytes: int) -> None:
    """Body of the receiver: a kind in, (seconds, CPU seconds) out."""
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
        for kind in questions(parent):
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
    """Body of the sender: a kind in, CPU seconds out."""
    source = np.ones(num_bytes, np.uint8).data
    with (
        socket.create_connection(tcp) as over_tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as over_unix,
    ):
        over_unix.connect(path)
        peers = {"raw TCP": over_tcp, "raw UDS": over_unix}
        for kind in questions(parent):
            cpu = time.process_time()
            for at in range(0, num_bytes, MESSAGE_BYTES):
                peers[kind].sendall(source[at : at + MESSAGE_BYTES])
            parent.send(time.process_time() - cpu)
