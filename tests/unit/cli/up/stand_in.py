"""A part for supervisor tests: answers health checks on its address, or refuses to start.

Arguments: kind, host:port, folder for notes. Every start appends the process id to the note
`<port>.pids`; SIGTERM appends the port to the note `order`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve_http(path: Path) -> None:
    path.unlink(missing_ok=True)
    server = ThreadingUnixStreamServer(str(path), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def serve_grpc(address: str) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()


def main() -> None:
    kind, address, notes = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    port = address.rpartition(":")[2]
    with (notes / f"{port}.pids").open("a") as pids:
        print(os.getpid(), file=pids)
    if kind == "refuse":
        print("pagemesh decode: --model is 'x', but must be a folder", file=sys.stderr)
        sys.exit(1)
    starts = (notes / f"{port}.pids").read_text().count("\n")
    if kind == "crash" or (kind == "once" and starts > 1):
        raise ZeroDivisionError("by design")
    # For `sigwait`. A handler that sets an event could run while the main thread is just about to wait for it, and
    # wait for the lock that the thread itself holds.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if kind == "http":
        serve_http(notes / "http.sock")
    else:
        serve_grpc(address)
    while kind == "stubborn":
        signal.pause()
    signal.sigwait({signal.SIGTERM})
    with (notes / "order").open("a") as order:
        print(port, file=order)
    os._exit(0)


if __name__ == "__main__":
    main()
