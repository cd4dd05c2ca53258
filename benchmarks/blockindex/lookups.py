"""A router that asks all the time, in a thread of its own."""

from __future__ import annotations

import threading
import time

import grpc
from blockindex.contents import new_chain
from blockindex.processes import MODEL

from pagemesh.rpc.channels import channel_options
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

PERIOD_S = 0.005
TIMEOUT_S = 10.0


class Lookups(threading.Thread):
    """Looks a prompt of 2,048 tokens up every few milliseconds and notes how long the answers took."""

    def __init__(self, kvstore: str) -> None:
        super().__init__(daemon=True)
        self._kvstore = kvstore
        self._request = kvstore_pb2.LookupRequest(
            block_hashes=b"".join(new_chain()), model_fingerprint=MODEL
        )
        self._ended = threading.Event()
        self._seconds: list[float] = []

    def run(self) -> None:
        """Ask until `end`, once at least."""
        with grpc.insecure_channel(self._kvstore, options=channel_options()) as channel:
            stub = kvstore_pb2_grpc.KvStoreStub(channel)
            is_over = False
            while not is_over:
                start = time.perf_counter()
                stub.Lookup(self._request, timeout=TIMEOUT_S)
                self._seconds.append(time.perf_counter() - start)
                is_over = self._ended.wait(PERIOD_S)

    def end(self) -> list[float]:
        """Stop asking; seconds of each answer."""
        self._ended.set()
        self.join()
        return self._seconds
