"""A prefill or decode worker over a hollow engine, as a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Literal, Self

from child import Child, questions
from kv.hollow_engine import HollowEngine, HollowSettings, Import
from members import peer

from pagemesh.config import MemberConfig, ModelConfig, ServerConfig, WorkerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.malloc import keep_freed_memory
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.telemetry.logs import configure_logging
from pagemesh.v1 import types_pb2
from pagemesh.worker.server import WorkerServer

_SERVER = ServerConfig(grace_period=0.0, log_level="error")
_ROLES = {"prefill": PREFILL_ROLE, "decode": DECODE_ROLE}


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker's process is told."""

    role: Literal["prefill", "decode"]
    engine: HollowSettings
    share_memory: bool = False
    """Whether KV goes through memory; else it does through gRPC."""
    prepare: Callable[[], None] | None = None
    """Called first of all in the process, for what only a benchmark may change; picklable."""


class HollowWorker:
    """Started by the constructor, serves within the context."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._child = Child(f"a {settings.role} worker without a model", _run, settings)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            child = stack.enter_context(self._child)
            self.peer = types_pb2.PeerWorker.FromString(child.answer())
            """How others find it."""
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def next_import(self) -> Import:
        """The next import that ended; RuntimeError when none does in time."""
        taken: Import = self._child.answer()
        return taken

    def forget_imports(self) -> None:
        """For who does not ask for them: a worker that can tell of no more would stand still."""
        self._child.forget()


def _run(parent: Connection, settings: WorkerSettings) -> None:
    """Body of the process: how others find the worker, then every import that ended."""
    if settings.prepare is not None:
        settings.prepare()
    configure_logging(_SERVER, settings.role)
    keep_freed_memory()
    asyncio.run(_serve(parent, settings))


async def _serve(parent: Connection, settings: WorkerSettings) -> None:
    member = MemberConfig(share_kv_memory=settings.share_memory)
    config = WorkerConfig(model=ModelConfig(model="hollow"), member=member, server=_SERVER)
    async with WorkerServer(config, _ROLES[settings.role]) as server:
        worker = await server.serve(HollowEngine(settings.engine, parent.send))
        parent.send(peer(worker.info).SerializeToString())
        # It is asked nothing: this ends when the parent closes the pipe.
        await asyncio.to_thread(list, questions(parent))
