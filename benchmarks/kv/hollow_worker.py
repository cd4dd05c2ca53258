"""A prefill or decode worker over a hollow engine, as a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Literal, Self, TypeVar

from kv.hollow_engine import HollowEngine, HollowSettings, Import
from members import peer

from pagemesh.config import MemberConfig, ModelConfig, ServerConfig, WorkerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.telemetry.logs import configure_logging
from pagemesh.v1 import types_pb2
from pagemesh.worker.heap import keep_freed_memory
from pagemesh.worker.server import WorkerServer

_Message = TypeVar("_Message")
_DEADLINE_S = 60.0
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
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_run, args=(theirs, settings), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        self.peer: types_pb2.PeerWorker = types_pb2.PeerWorker.FromString(self._receive(bytes))
        """How others find it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._process.join(_DEADLINE_S)
        if self._process.is_alive():
            self._process.kill()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def next_import(self) -> Import:
        """The next import that ended; RuntimeError when none does in time."""
        return self._receive(Import)

    def forget_imports(self) -> None:
        """For who does not ask for them: a worker that can tell of no more would stand still."""
        while self._connection.poll():
            self._connection.recv()

    def _receive(self, kind: type[_Message]) -> _Message:
        if not self._connection.poll(_DEADLINE_S):
            raise RuntimeError(f"a worker said nothing for {_DEADLINE_S:g} s")
        try:
            message = self._connection.recv()
        except EOFError:
            raise RuntimeError("a worker ended; its log is above") from None
        assert isinstance(message, kind)
        return message


def _run(parent: Connection, settings: WorkerSettings) -> None:
    """Body of the process; ends when the parent closes its end of the pipe, or is gone."""
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
        await asyncio.to_thread(_until_closed, parent)


def _until_closed(parent: Connection) -> None:
    try:
        parent.recv()
    except (EOFError, ConnectionResetError):  # a reset when some imports were never asked for
        return
