"""The entry point of a decode worker."""

from __future__ import annotations

from contextlib import AsyncExitStack

from pagemesh.config import WorkerConfig
from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.servicer import DecodeServicer
from pagemesh.rpc.server import GrpcServer
from pagemesh.v1 import decode_pb2, decode_pb2_grpc
from pagemesh.worker.process import run_worker
from pagemesh.worker.server import Role
from pagemesh.worker.worker import Worker


def _add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
    prefiller = RemotePrefiller(worker)
    stack.push_async_callback(prefiller.close)
    servicer = DecodeServicer(worker, prefiller, server.grace_period)
    server.on_drain(servicer.drain)
    server.add(decode_pb2_grpc.add_DecodeServicer_to_server, servicer)


DECODE_ROLE = Role(
    name="decode",
    service_name=decode_pb2.DESCRIPTOR.services_by_name["Decode"].full_name,
    add_services=_add_services,
)


def run(config: WorkerConfig) -> None:
    """Run a decode worker until it is told to stop; ConfigError for a setting that cannot be."""
    run_worker(config, DECODE_ROLE)
