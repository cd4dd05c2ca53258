"""One process of the mesh: started, watched, stopped; its output goes to a log file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from pathlib import Path
from typing import IO

from pagemesh.cli.up.plan import PartPlan
from pagemesh.local.bound_process import bound_to


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
