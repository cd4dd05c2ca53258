"""The entry point of a prefill worker."""

from __future__ import annotations

from contextlib import AsyncExitStack

from pagemesh.config import WorkerConfig
from pagemesh.prefill.servicer import PrefillServicer
from pagemesh.rpc.server import GrpcServer
from pagemesh.v1 import prefill_pb2, prefill_pb2_grpc
from pagemesh.worker.kv_importer import KvImporter
from pagemesh.worker.process import run_worker
from pagemesh.worker.server import Role
from pagemesh.worker.worker import Worker


def _add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
    importer = KvImporter(worker)
    stack.push_async_callback(importer.close)
    servicer = PrefillServicer(worker, importer)
    server.add(prefill_pb2_grpc.add_PrefillServicer_to_server, servicer)


PREFILL_ROLE = Role(
    name="prefill",
    service_name=prefill_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name,
    add_services=_add_services,
)


def run(config: WorkerConfig) -> None:
    """Run a prefill worker until it is told to stop; ConfigError for a setting that cannot be."""
    run_worker(config, PREFILL_ROLE)
