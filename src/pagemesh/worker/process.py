"""A worker's process: it starts its engine, serves while that lives, and ends with it."""

from __future__ import annotations

import asyncio
import os

from pagemesh.config import WorkerConfig
from pagemesh.config.environment import core_place_of_environment, shared_weights_of_environment
from pagemesh.engine.shared_cores import CorePlace
from pagemesh.engine_process.client import EngineProcess, RemoteEngine
from pagemesh.engine_process.environment import BOUNDED_CACHES, SLEEPING_THREADS
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.errors import InternalError, WorkerLostError
from pagemesh.malloc import keep_freed_memory
from pagemesh.rpc.server import stop_on_signals
from pagemesh.rpc.settling import settle
from pagemesh.sizing.machine import core_limit
from pagemesh.telemetry.logs import configure_logging
from pagemesh.worker.server import Role, WorkerServer


def run_worker(config: WorkerConfig, role: Role) -> None:
    """Run a worker in this process until SIGTERM or SIGINT.

    Raises ConfigError for a setting that cannot be, InternalError when the engine was lost to a bug.
    """
    configure_logging(config.server, role.name)
    keep_freed_memory()
    prepare_environment(config.model.threads)
    asyncio.run(_run(config, role))


def prepare_environment(num_threads: int) -> None:
    """Set how many threads tensor operations use, how they wait and what they remember, in the engine's environment."""
    os.environ.update(SLEEPING_THREADS)
    for variable, value in BOUNDED_CACHES.items():
        os.environ.setdefault(variable, value)
    if limit := num_threads or _granted_threads():
        os.environ["OMP_NUM_THREADS"] = str(limit)
        os.environ["MKL_NUM_THREADS"] = str(limit)


def _granted_threads() -> int | None:
    """As many as the container around this process has cores, where nobody says how many; torch sees those of the
    whole machine."""
    return None if "OMP_NUM_THREADS" in os.environ else core_limit()


def _core_place() -> CorePlace | None:
    place = core_place_of_environment()
    return None if place is None else CorePlace(*place)


async def _run(config: WorkerConfig, role: Role) -> None:
    stop = stop_on_signals()
    async with WorkerServer(config, role) as server:
        engine = await _load_unless_stopped(config, role, stop)
        if engine is None:
            return
        worker = await server.serve(engine)
        settle()
        ended = asyncio.create_task(engine.ended())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            # Requests need not wait for the end of the grace period, which nothing can use any more.
            worker.dispatcher.end_all(
                WorkerLostError(f"worker {worker.info.worker_id} lost its engine")
            )
            # A worker that can serve nothing must not look alive: whoever started it may try again.
            raise InternalError("the engine was lost; see the log")


async def _load_unless_stopped(
    config: WorkerConfig, role: Role, stop: asyncio.Event
) -> RemoteEngine | None:
    """The engine, in a process of its own; None when the worker is told to stop before it is loaded."""
    process = EngineProcess(
        EngineSettings(
            config.model,
            config.cache,
            config.scheduler,
            config.server,
            role.name,
            config.hardware,
            _core_place(),
            shared_weights_of_environment(),
        )
    )
    loaded = asyncio.create_task(asyncio.to_thread(process.connect))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((loaded, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not loaded.done():
            process.kill()
            await asyncio.wait({loaded})
    return None if stop.is_set() and loaded.exception() else loaded.result()
