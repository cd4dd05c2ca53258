"""The entry point of a prefill worker."""

from __future__ import annotations

from contextlib import AsyncExitStack

from pagemesh.config import WorkerConfig
from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.kv_transfer.streams import PREFILL
from pagemesh.prefill.servicer import PrefillServicer
from pagemesh.rpc.server import GrpcServer
from pagemesh.worker.process import run_worker
from pagemesh.worker.server import Role
from pagemesh.worker.worker import Worker


def _add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
    importer = KvImporter(worker, "remote_pull")
    stack.push_async_callback(importer.close)
    server.add(PREFILL.add_to_server, PrefillServicer(worker, importer).Prefill)


PREFILL_ROLE = Role(
    name="prefill",
    service_name=PREFILL.service.full_name,
    add_services=_add_services,
)


def run(config: WorkerConfig) -> None:
    """Run a prefill worker until it is told to stop; ConfigError for a setting that cannot be."""
    run_worker(config, PREFILL_ROLE)
