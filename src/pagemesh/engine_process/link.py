"""The worker's end of the pipe to its engine's process: commands out, what the engine makes known in."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from concurrent.futures import Future

import structlog

from pagemesh.core.engine import StepListener, StepOutput
from pagemesh.core.load import EngineLoad
from pagemesh.engine_process.pipe import Command, NotUnderstoodError, Pinned, Pipe
from pagemesh.errors import PagemeshError, UnavailableError

log = structlog.get_logger(__name__)

STOP_TIMEOUT = 10.0
"""Seconds that an engine has to end; it may be in a long step."""

_PinFuture = Future[tuple[int, ...]]


class EngineLink:
    """Commands may come from any thread; messages are read on the loop on which `follow` was called."""

    def __init__(
        self, process: subprocess.Popen[bytes], pipe: Pipe, initial_load: EngineLoad
    ) -> None:
        self._process = process
        self._pipe = pipe
        self.load = initial_load
        """The load that the engine last made known; replaced as a whole, so any thread may read it."""
        self._pins: dict[str, _PinFuture] = {}
        self._closing = False
        self._followed_on: asyncio.AbstractEventLoop | None = None
        self._listener: StepListener | None = None
        self._gone = asyncio.Event()
        self._ended = threading.Event()

    def follow(self, listener: StepListener) -> None:
        """Call `listener`, on this event loop, with everything that the engine makes known."""
        self._listener = listener
        self._followed_on = asyncio.get_running_loop()
        self._followed_on.add_reader(self._pipe.fileno(), self._read)

    def send(self, method: str, *arguments: object) -> bool:
        """Have the engine do something; False, without effect, when it is closed or gone."""
        if self._closing or self._ended.is_set():
            return False
        try:
            self._pipe.send(Command(method, arguments))
        except OSError:
            return False
        return True

    def pin(self, request_id: str, block_hashes: tuple[bytes, ...]) -> _PinFuture:
        """Send a pin; the future gets the engine's answer, or UnavailableError when none can come."""
        future = self._pins[request_id] = _PinFuture()
        if not self.send("pin", request_id, block_hashes):
            self._settle(Pinned(request_id, UnavailableError("the engine is stopped")))
        return future

    async def ended(self) -> None:
        """Wait until the engine's process has ended, told or not."""
        await self._gone.wait()

    def close(self) -> None:
        """Have the engine stop, and return when all that it made known is delivered. Not on the loop."""
        self.send("stop")
        self._closing = True
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            log.error("the engine did not stop in time", timeout=STOP_TIMEOUT)
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
        if self._followed_on is not None and self._followed_on.is_running():
            self._ended.wait(STOP_TIMEOUT)

    def _read(self) -> None:
        """Take one message; called by the loop again for the next."""
        try:
            message = self._pipe.receive()
        except (EOFError, OSError) as error:
            if isinstance(error, NotUnderstoodError):
                log.error("the engine is not understood, and given up", error=str(error))
            self._end()
            return
        if isinstance(message, StepOutput):
            self.load = message.load
            assert self._listener is not None
            self._listener(message)
        elif isinstance(message, Pinned):
            self._settle(message)

    def _settle(self, pinned: Pinned) -> None:
        future = self._pins.pop(pinned.request_id, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if isinstance(pinned.outcome, PagemeshError):
            future.set_exception(pinned.outcome)
        else:
            future.set_result(pinned.outcome)

    def _end(self) -> None:
        """The other end is closed: nothing will follow."""
        assert self._followed_on is not None
        self._followed_on.remove_reader(self._pipe.fileno())
        self._pipe.close()
        self._ended.set()
        self._gone.set()
        for request_id in list(self._pins):
            self._settle(Pinned(request_id, UnavailableError("the engine is gone")))
