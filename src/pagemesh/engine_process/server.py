"""The engine's own process: `python -m pagemesh.engine_process.server SOCKET HEARTBEAT MEMORY CHANNEL …`, started
by a worker.

Ends when it is told to stop, when its engine hangs, and at once when the worker is gone.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import structlog

from pagemesh.engine.shared_cores import SharedCores
from pagemesh.engine_process.heartbeat import start_beating
from pagemesh.engine_process.pipe import Command, EngineSettings, Loaded, Pinned, Pipe
from pagemesh.engine_process.staging_channel import serve
from pagemesh.errors import InternalError, PagemeshError, UnavailableError
from pagemesh.kv_memory.staged import StagedKv
from pagemesh.loading.shared_weights import SharedWeights
from pagemesh.local.processes import loading
from pagemesh.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from pagemesh.engine.engine import EngineCore

log = structlog.get_logger(__name__)

_CALLS: Final = frozenset(
    ("submit", "cancel", "release", "first_token", "finish_import", "publish_snapshot")
)


EngineMaker = Callable[[EngineSettings, int], "EngineCore"]
"""Loads an engine whose KV, or the buffers to it, lie in the memory behind a descriptor."""


def main(
    socket: int,
    heartbeat: int,
    memory: int,
    channels: Sequence[int],
    make_engine: EngineMaker | None = None,
) -> None:
    """Load the engine, say what it is or why it cannot be, and run it until told to stop.

    Meanwhile the heartbeat says that it can answer. Over the channels KV is staged, where the worker cannot map
    it. Tests make other engines.
    """
    # Both may reach a whole group of processes; the worker decides when its engine stops.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pipe = Pipe(socket)
    settings: EngineSettings = pipe.receive()
    configure_logging(settings.server, settings.role)
    loaded: Future[EngineCore] = Future()
    stop = threading.Event()
    threading.Thread(
        target=_follow, args=(pipe, loaded, stop), name="commands", daemon=True
    ).start()
    try:
        engine = (make_engine or _load_engine)(settings, memory)
    except PagemeshError as error:
        pipe.send(error)
        return
    # What is loaded by now stays. The garbage collector would walk it again and again, in pauses that
    # every token waits for, and for seconds when the process ends.
    gc.freeze()
    loaded.set_result(engine)
    loaded_engine = Loaded(engine.info, staging=None)
    if isinstance(engine.kv, StagedKv):
        loaded_engine = Loaded(engine.info, engine.kv.area, engine.kv.name)
        serve([Pipe(channel) for channel in channels], engine.kv.stager)
    start_beating(heartbeat, engine.check, stop)
    pipe.send(loaded_engine)
    # Ends by the worker's word; if that never comes, because the worker is gone, `_follow` ends all.
    stop.wait()
    engine.stop()


def _load_engine(settings: EngineSettings, memory: int) -> EngineCore:
    # Here, because the import of torch takes seconds, in which the worker may go away.
    with loading():
        from pagemesh.kernels.packed_weights import packing_into
        from pagemesh.loading.engine import load_engine

    weights = _shared_weights(settings)
    with nullcontext() if weights is None else packing_into(weights.share):
        engine = load_engine(
            settings.model,
            settings.cache,
            settings.scheduler,
            settings.hardware,
            memory,
            cores=_shared_cores(settings),
        )
    if weights is not None:
        weights.close()
        say = log.warning if weights.is_stuck else log.info
        say(
            "weights are shared",
            found_bytes=weights.found_bytes,
            added_bytes=weights.added_bytes,
            another_worker_is_stuck=weights.is_stuck,
        )
    return engine


def _shared_cores(settings: EngineSettings) -> SharedCores | None:
    if settings.cores is None:
        return None
    try:
        return SharedCores(settings.cores)
    except TimeoutError as error:
        log.warning("cores are not shared", reason=str(error))
        return None


def _shared_weights(settings: EngineSettings) -> SharedWeights | None:
    if settings.weights is None:
        return None
    try:
        return SharedWeights(settings.weights)
    except (OSError, TimeoutError) as error:
        log.warning("weights are not shared", reason=str(error))
        return None


def _follow(pipe: Pipe, loaded: Future[EngineCore], stop: threading.Event) -> None:
    """Do what the worker asks, from the first moment on, so that its end is noticed at any time."""
    try:
        while (command := _receive(pipe)).method != "stop":
            _execute(command, loaded.result(), pipe)
        stop.set()
        # Until the process ends: the worker may be gone while the engine still stops.
        pipe.receive()
    except (EOFError, OSError):
        os._exit(1)
    except UnavailableError:
        # The engine was stopped by a bug, which it has logged. A process that can compute nothing ends.
        stop.set()


def _receive(pipe: Pipe) -> Command:
    command = pipe.receive()
    assert isinstance(command, Command), command
    return command


def _execute(command: Command, engine: EngineCore, pipe: Pipe) -> None:
    match command.method:
        case "start":
            engine.start(pipe.send)
        case "pin":
            request_id, block_hashes = command.arguments
            pinned = engine.pin(request_id, block_hashes)
            pinned.add_done_callback(lambda done: _answer_pin(pipe, request_id, done))
        case method:
            assert method in _CALLS, method
            getattr(engine, method)(*command.arguments)


def _answer_pin(pipe: Pipe, request_id: str, pinned: Future[tuple[int, ...]]) -> None:
    error = pinned.exception()
    if error is None:
        pipe.send(Pinned(request_id, pinned.result()))
    elif isinstance(error, PagemeshError):
        pipe.send(Pinned(request_id, error))
    else:
        pipe.send(Pinned(request_id, InternalError("the blocks could not be pinned")))


if __name__ == "__main__":
    socket, heartbeat, memory, *channels = map(int, sys.argv[1:])
    main(socket, heartbeat, memory, channels)
