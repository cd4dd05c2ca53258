"""The engine as a worker has it: in a process of its own, so that gRPC and the engine share no GIL.

Calls travel as messages and return at once. KV blocks lie in memory that both
processes map, or, where they are on a device, go through buffers there.
(vLLM and SGLang separate their engine from their server likewise.)
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future

import structlog

from pagemesh.core.engine import EngineInfo, StepListener
from pagemesh.core.kv import KvAccess
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import EngineRequest
from pagemesh.engine_process.heartbeat import SILENCE_LIMIT, watch_beats
from pagemesh.engine_process.link import STOP_TIMEOUT, EngineLink
from pagemesh.engine_process.pipe import (
    EngineSettings,
    Loaded,
    Pipe,
)
from pagemesh.engine_process.staging_channel import RemoteStager
from pagemesh.errors import InternalError, PagemeshError, UnavailableError
from pagemesh.kv_memory.memory import KvMemory, open_memory
from pagemesh.kv_memory.staged import NUM_SLOTS, StagedKv, map_slots
from pagemesh.sampling.logprobs import TokenLogprobs


class EngineProcess:
    """A process that loads an engine: `connect` once, or `kill` at any time before."""

    def __init__(
        self,
        settings: EngineSettings,
        program: str = "pagemesh.engine_process.server",
        silence_limit: int = SILENCE_LIMIT,
    ) -> None:
        """Start the process; `program` is the module that it runs.

        Once it is loaded, it is killed after so many seconds without a beat.
        """
        # For commands, for beats, and one for each slot that KV is staged in.
        pairs = [socket.socketpair() for _ in range(2 + NUM_SLOTS)]
        self._memory = open_memory()
        theirs = [pair[1].fileno() for pair in pairs]
        descriptors = [*theirs[:2], self._memory, *theirs[2:]]
        shared = (settings.cores.descriptor if settings.cores else None, settings.weights)
        inherited = [*descriptors, *(each for each in shared if each is not None)]
        self._silence_limit = silence_limit
        # -P: modules that happen to lie in the current folder must not hide installed ones.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", program, *map(str, descriptors)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
        )
        for _, their_end in pairs:
            their_end.close()
        self._heartbeat = pairs.pop(1)[0]
        self._pipe, *self._channels = [Pipe(our_end.detach()) for our_end, _ in pairs]
        self._pipe.send(settings)

    def connect(self) -> RemoteEngine:
        """Wait until the engine is loaded; ConfigError when it says why it cannot be.

        Blocks for as long as loading takes; `kill` ends the wait with InternalError.
        """
        try:
            answer = self._pipe.receive()
        except (EOFError, OSError):
            answer = InternalError("the engine's process ended while it loaded the model")
        try:
            if isinstance(answer, PagemeshError):
                # It has said all that it had to say.
                self._pipe.close()
                self._heartbeat.close()
                self._process.kill()
                self._process.wait(STOP_TIMEOUT)
                raise answer
            assert isinstance(answer, Loaded), answer
            kv = self._access(answer)
        finally:
            os.close(self._memory)
        watch_beats(self._heartbeat.detach(), self.kill, self._silence_limit)
        load = EngineLoad(num_free_blocks=answer.info.num_blocks)
        return RemoteEngine(answer.info, kv, EngineLink(self._process, self._pipe, load))

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()

    def _access(self, loaded: Loaded) -> KvAccess:
        info = loaded.info
        if loaded.staging is None:
            for channel in self._channels:
                channel.close()
            return KvMemory(info.layout, info.num_blocks, self._memory)
        slots = map_slots(loaded.staging, self._memory)
        stager = RemoteStager(self._channels, self.kill)
        return StagedKv(info.layout, info.num_blocks, slots, stager, loaded.memory)


class RemoteEngine:
    """Implements `pagemesh.core.engine.Engine`; `start` belongs to an event loop."""

    def __init__(self, info: EngineInfo, kv: KvAccess, link: EngineLink) -> None:
        self._info = info
        self._kv = kv
        self._link = link

    @property
    def info(self) -> EngineInfo:
        """Facts that do not change while the engine lives."""
        return self._info

    @property
    def kv(self) -> KvAccess:
        """Access to the paged KV for exports and imports."""
        return self._kv

    def load(self) -> EngineLoad:
        """The load that the engine last made known."""
        return self._link.load

    def start(self, listener: StepListener) -> None:
        """Start the engine; `listener` is called on this event loop."""
        self._link.follow(listener)
        self._link.send("start")

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; raises UnavailableError when the engine is stopped or gone."""
        if not self._link.send("submit", request):
            raise UnavailableError("the engine is stopped")

    def cancel(self, request_id: str) -> None:
        """End a request with CANCELLED."""
        self._link.send("cancel", request_id)

    def release(self, request_id: str) -> None:
        """End an export or a pin."""
        self._link.send("release", request_id)

    def first_token(
        self, request_id: str, token_id: int, logprobs: TokenLogprobs | None = None
    ) -> None:
        """Report an import's first token; it is delivered at once."""
        self._link.send("first_token", request_id, token_id, logprobs)

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        """End an import's lease."""
        self._link.send("finish_import", request_id, num_valid_tokens)

    def pin(self, request_id: str, block_hashes: Sequence[bytes]) -> Future[tuple[int, ...]]:
        """Hold cached blocks until `release`; the future fails when the engine is stopped or gone."""
        return self._link.pin(request_id, tuple(block_hashes))

    def publish_snapshot(self) -> None:
        """Have the next StepOutput name all cached blocks."""
        self._link.send("publish_snapshot")

    async def ended(self) -> None:
        """Wait until the engine's process has ended, told or not."""
        await self._link.ended()

    def stop(self) -> None:
        """Cancel everything, deliver the last outputs, end the process. Not on the event loop."""
        self._link.close()


log = structlog.get_logger(__name__)
