"""The `Process` service: what a process says of itself, in the same words whatever kind of process it is.

Knows what all processes have in common; each kind adds what it alone knows with a `Describer`.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import pkgutil
import platform
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from functools import cache
from importlib import metadata
from typing import Any, Final

import grpc

import pagemesh.v1
from pagemesh.rpc.channels import host_identity
from pagemesh.v1 import process_pb2, process_pb2_grpc

PROCESS_SERVICE: Final = process_pb2.DESCRIPTOR.services_by_name["Process"].full_name

_DIGEST_TIMEOUT_S: Final = 10.0
"""For reading what is installed."""

Describer = Callable[[process_pb2.DescribeResponse], Awaitable[None]]
"""Fills in what its kind of process knows: reads what is there, and waits for nothing that may be long in coming."""


@cache
def package_version(name: str) -> str:
    """Version of an installed distribution; empty when there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@cache
def contract_digest() -> str:
    """Of the whole contract, whatever part of it a process uses. Loads all stubs."""
    digest = hashlib.blake2b(digest_size=16)
    names = [module.name for module in pkgutil.iter_modules(pagemesh.v1.__path__)]
    for name in sorted(name for name in names if name.endswith("_pb2")):
        digest.update(importlib.import_module(f"pagemesh.v1.{name}").DESCRIPTOR.serialized_pb)
    return digest.hexdigest()


class ProcessServicer(process_pb2_grpc.ProcessServicer):
    """Answers for one server; `describe_server` fills in what that one knows."""

    def __init__(self, describe_server: Callable[[process_pb2.DescribeResponse], None]) -> None:
        self._describe_server = describe_server
        self._started_at = time.time()
        self.describers: list[Describer] = []
        """Of the kind of process, in order."""
        self.metrics_page: Callable[[Collection[str]], bytes] = lambda names: b""
        """What the process exports by these names; all for none."""

    def add_to_server(self, server: Any) -> None:
        """Have it answer there."""
        process_pb2_grpc.add_ProcessServicer_to_server(self, server)

    async def Describe(  # noqa: N802  # the name of the RPC
        self,
        request: process_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[
            process_pb2.DescribeRequest, process_pb2.DescribeResponse
        ],
    ) -> process_pb2.DescribeResponse:
        """Says what the process is and what it sees."""
        async with asyncio.timeout(_DIGEST_TIMEOUT_S):
            # The first time takes some milliseconds, which nobody's tokens are to wait for.
            digest = await asyncio.to_thread(contract_digest)
        response = process_pb2.DescribeResponse(
            version=package_version("pagemesh"),
            contract_digest=digest,
            package_versions={"python": platform.python_version(), "grpcio": grpc.__version__},
            host_name=socket.gethostname(),
            host=host_identity(),
        )
        self._describe_server(response)
        for describe in self.describers:
            await describe(response)
        response.started_at.FromNanoseconds(int(self._started_at * 1e9))
        # Last: whoever asks takes it for the time at which the answer left.
        response.now.FromNanoseconds(int(time.time() * 1e9))
        return response

    async def Metrics(  # noqa: N802  # the name of the RPC
        self,
        request: process_pb2.MetricsRequest,
        context: grpc.aio.ServicerContext[process_pb2.MetricsRequest, process_pb2.MetricsResponse],
    ) -> process_pb2.MetricsResponse:
        """Gives the metrics of these names, or all."""
        return process_pb2.MetricsResponse(page=self.metrics_page(request.names))
