"""Keeps the parts of a mesh up: starts them, restarts what dies, stops them in order.

A part is one process, whose output goes to a log file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import IO

import grpc

from pagemesh.cli.up.console import Console, ending
from pagemesh.cli.up.plan import LAST_WORDS_S, MeshPlan, PartPlan, Stage
from pagemesh.cli.up.readiness import grpc_serves, http_answers
from pagemesh.errors import ConfigError, InternalError
from pagemesh.local.processes import bound_to, reap_orphans

_REPORT_INTERVAL = 10.0

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0
_STEADY_AFTER = 30.0
"""Seconds of service after which a death counts as the first one again."""

_DEATHS_AT_START = 3
"""A part that is killed so often before it ever served will not come up."""

_FAILED_STARTS = 8
"""In a row, within a minute or more: a part that served before will not come back."""

_NUM_LOG_LINES = 8

_STOPS = ((Stage.GATEWAY, Stage.ROUTER), (Stage.WORKER,), (Stage.KVSTORE,))
"""Callers go before those they call. But what routers say last, of streams that they end, the gateway carries."""

# With the default grace period, stopping takes less than five seconds.
_PATIENCE = {
    Stage.GATEWAY: LAST_WORDS_S + 0.3,
    Stage.ROUTER: 0.3,
    Stage.WORKER: 0.3,
    Stage.KVSTORE: 0.6,
}
"""Seconds that a part has to end; those that run requests have the grace period besides."""

_RUN_REQUESTS = (Stage.GATEWAY, Stage.ROUTER, Stage.WORKER)


class Mesh:
    """All parts of a plan: `start`, then `watch` until cancelled, and `stop` whatever happened."""

    def __init__(
        self,
        plan: MeshPlan,
        log_folder: Path,
        console: Console,
        certificate: grpc.ChannelCredentials | None = None,
    ) -> None:
        """With a certificate, parts are asked with TLS whether they serve."""
        self._plan = plan
        self._certificate = certificate
        self._console = console
        self._parts = [Part(part, log_folder) for part in plan.parts]
        self._keepers: list[asyncio.Task[None]] = []
        self._serving = {part.plan.name: asyncio.Event() for part in self._parts}
        """Set when a part serves for the first time."""
        self._serves_now: set[str] = set()

    async def start(self) -> None:
        """Start every part and wait until the mesh answers.

        Raises ConfigError with the sentence of a part that refuses its settings.
        """
        self._keepers = [
            asyncio.create_task(self._keep(part), name=part.plan.name) for part in self._parts
        ]
        ready = asyncio.create_task(self._answers())
        reports = asyncio.create_task(self._report_waiting())
        try:
            async with asyncio.timeout(self._plan.start_timeout):
                await asyncio.wait([ready, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            waiting = ", ".join(self._waiting()) or "the mesh"
            patience = self._plan.start_timeout
            raise InternalError(f"{waiting} did not serve within {patience:g} s") from None
        finally:
            reports.cancel()
            ready.cancel()
        await self._raise_failure()

    async def watch(self) -> None:
        """Keep the parts up; returns only by cancellation or with the exception of a keeper."""
        await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
        await self._raise_failure()

    async def stop(self) -> None:
        """End every part, callers before those they call; within two grace periods and two seconds."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for stages in _STOPS:
            parts = [part for part in self._parts if part.plan.stage in stages]
            await asyncio.gather(*(part.stop(self._patience(part)) for part in parts))

    def _patience(self, part: Part) -> float:
        stage = part.plan.stage
        grace_period = self._plan.grace_period if stage in _RUN_REQUESTS else 0.0
        return grace_period + _PATIENCE[stage]

    def kill(self) -> None:
        """End every part at once; `stop` still has to be awaited."""
        for part in self._parts:
            part.kill()

    async def _keep(self, part: Part) -> None:
        """Run one part for ever; raises when it cannot be started at all, or not again, and nobody does its work."""
        serving = self._serving[part.plan.name]
        num_deaths = num_failed_starts = 0
        while True:
            served_before = serving.is_set()
            await part.start()
            started = time.monotonic()
            served = await self._served(part)
            if served:
                started = time.monotonic()
                serving.set()
                self._serves_now.add(part.plan.name)
                if served_before:
                    self._console.part_back(part.plan.name)
                else:
                    self._console.part_up(part.plan.name)
            code = await part.ended()
            self._serves_now.discard(part.plan.name)
            num_failed_starts = 0 if served else num_failed_starts + 1
            steady = served and time.monotonic() - started > _STEADY_AFTER
            # What ends in order was told to: it is wanted back at once.
            num_deaths = 1 if steady or code == 0 else num_deaths + 1
            if not serving.is_set() and (code >= 0 or num_deaths == _DEATHS_AT_START):
                raise _failure(part, code)
            if num_failed_starts >= _FAILED_STARTS and self._is_missing(part.plan):
                raise _failure(part, code)
            delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (num_deaths - 1))
            lines = [] if served else part.last_lines(_NUM_LOG_LINES)
            self._console.part_died(part.plan.name, code, delay, lines)
            await asyncio.sleep(delay)
            # What a killed part had started has ended by now.
            reap_orphans()

    def _is_missing(self, plan: PartPlan) -> bool:
        """Whether nothing that serves does what this part would."""
        alike = {part.plan.name for part in self._parts if part.plan.work == plan.work}
        return plan.work is not None and alike.isdisjoint(self._serves_now)

    async def _served(self, part: Part) -> bool:
        """Wait until the part serves, or has ended before."""
        ready = asyncio.create_task(self._ready(part))
        ended = asyncio.create_task(part.ended())
        try:
            await asyncio.wait(
                [ready, ended],
                timeout=self._plan.start_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not ready.done():
                # It ended, or hangs: then it gets another try like one that ended.
                part.kill()
                return False
            ready.result()
            return not ended.done()
        finally:
            ready.cancel()
            ended.cancel()

    async def _ready(self, part: Part) -> None:
        if part.plan.stage is Stage.GATEWAY:
            await http_answers(self._plan.local_socket, "/health")
        else:
            await grpc_serves(part.plan.address, part.plan.role, self._certificate)

    async def _answers(self) -> None:
        for serving in self._serving.values():
            await serving.wait()
        await http_answers(self._plan.local_socket, "/ready", 200)

    async def _report_waiting(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL)
            self._console.still_waiting(self._waiting() or ["the mesh"])

    def _waiting(self) -> list[str]:
        return [name for name, serving in self._serving.items() if not serving.is_set()]

    async def _raise_failure(self) -> None:
        for keeper in self._keepers:
            if keeper.done():
                await keeper


def _failure(part: Part, code: int) -> ConfigError | InternalError:
    """The part's own sentence when it ended with one, else the end of its log."""
    lines = part.last_lines(_NUM_LOG_LINES)
    sentence = lines[-1] if lines else ""
    command, marker, message = sentence.partition(": ")
    if marker and command.startswith("pagemesh "):
        return ConfigError(f"{part.plan.name} cannot start: {message}")
    log = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
    return InternalError(f"{part.plan.name} {ending(code)} at its start; it logged last:\n{log}")


class Part:
    """The present incarnation of one planned process.

    `start`, `ended` and `stop` belong to one task; `stop` may also be called when nothing runs.
    """

    def __init__(self, plan: PartPlan, log_folder: Path) -> None:
        self.plan = plan
        self.log_path = log_folder / f"{plan.name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._log_offset = 0

    @property
    def pid(self) -> int | None:
        """Process id, unless nothing runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process and running else None

    async def start(self) -> None:
        """Start the process in a session of its own, so that Ctrl-C reaches the supervisor alone."""
        with self._open_log() as log:
            self._log_offset = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *bound_to(os.getpid(), self.plan.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.plan.environment},
                start_new_session=True,
                pass_fds=self.plan.descriptors,
            )

    async def ended(self) -> int:
        """Wait for the end of the process: its exit code, or the negative number of a signal."""
        assert self._process is not None, "nothing was started"
        return await self._process.wait()

    async def stop(self, patience: float) -> None:
        """SIGTERM, and SIGKILL when the process is still there after `patience` seconds."""
        if self._process is None or self._process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), patience)
        except TimeoutError:
            self.kill()
            # Nothing outlives SIGKILL for long.
            await self._process.wait()

    def kill(self) -> None:
        """SIGKILL to the process and whatever it started."""
        self._signal(signal.SIGKILL)

    def last_lines(self, count: int) -> list[str]:
        """The last lines that this incarnation logged, if they could be written."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(self._log_offset)
                return [line.decode(errors="replace").rstrip() for line in deque(log, maxlen=count)]
        except OSError:
            return []

    def _open_log(self) -> IO[bytes]:
        """The log's file; one that cannot be opened, as on a full disk, must not keep the part from running."""
        try:
            return self.log_path.open("ab")
        except OSError:
            return Path(os.devnull).open("ab")

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
