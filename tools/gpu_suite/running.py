"""Runs the commands of a slice as processes, each with a log, a deadline, and an entry in the slice's record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tools.gpu_suite.record import DONE, FAILED, FILE, ROOT, STOPPED, Ended, Record
from tools.gpu_suite.slices import FIGURES, Command, Slice

GRACE_S: Final = 8.0
"""Before its deadline, for a command to write what it has."""

SLACK_S: Final = 2.0
"""That commands may be over what is left: the deadlines of a slice add up to its time, and starts count too."""


class Setup(NamedTuple):
    """What all commands of a run share."""

    folder: Path
    environment: Mapping[str, str]
    tree: str
    say: Callable[[str], None]
    grace_s: float = GRACE_S


class Outcome(NamedTuple):
    """Names of a slice's commands, by what came of them in this run."""

    ended: dict[str, str]
    left: list[str]
    """For which there was no time any more."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and all(how == DONE for how in self.ended.values())


def run_slice(
    part: Slice,
    setup: Setup,
    *,
    seconds: float | None = None,
    only: Sequence[str] = (),
    again: bool = False,
) -> Outcome:
    """Run what is not done yet and fits what is left of `seconds`; all that is chosen with `again`."""
    # Who was started in the background of a shell ignores interrupts, and so would all commands.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    runner = _Runner(part, setup)
    ends_at = time.monotonic() + (part.seconds if seconds is None else seconds)
    outcome = Outcome({}, [])
    try:
        for stage in part.stages:
            chosen = [command for command in stage if not only or command.name in only]
            todo = [each for each in chosen if again or not runner.record.has_done(each.name)]
            for command in chosen:
                if command not in todo:
                    setup.say(f"{command.name}: done before")
            left_s = ends_at - time.monotonic()
            late = [command for command in todo if command.seconds > left_s + SLACK_S]
            outcome.left.extend(command.name for command in late)
            outcome.ended.update(runner.run([each for each in todo if each not in late]))
    finally:
        runner.stop()
    return outcome


class _Runner:
    """The processes of one slice."""

    def __init__(self, part: Slice, setup: Setup) -> None:
        self._folder = setup.folder / part.folder
        self._setup = setup
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_over = False
        self._lock = threading.Lock()
        self.record = Record(self._folder / FILE, setup.tree)

    def run(self, commands: Sequence[Command]) -> dict[str, str]:
        """Side by side; how each ended."""
        if not commands:
            return {}
        self.record.forget(command.name for command in commands)
        for command in commands:
            self._setup.say(f"{command.name}: at most {command.seconds:.0f} s")
        with ThreadPoolExecutor(len(commands)) as pool:
            try:
                futures = {each.name: pool.submit(self._run, each) for each in commands}
                wait(futures.values())
            except BaseException:
                self.stop()  # before the pool waits for their ends
                raise
        return {name: future.result() for name, future in futures.items()}

    def stop(self) -> None:
        """Kill what runs; nothing is started or noted afterwards."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                _kill(process)

    def _run(self, command: Command) -> str:
        figures = self._folder / f"{command.name}{command.figures}"
        if command.figures:
            figures.unlink(missing_ok=True)
        words = [word.replace(FIGURES, str(figures)) for word in command.arguments]
        log = self._folder / f"{command.name}.log"
        started = time.monotonic()
        with log.open("wb") as file:
            process = self._start([sys.executable, *words], file.fileno())
            if process is None:
                return STOPPED
            try:
                how, code = self._wait(process, command.seconds)
            finally:
                with self._lock:
                    _kill(process)  # what it started may outlive it
                    self._running.discard(process)
        ended = Ended(how, code, time.monotonic() - started, _last_line(log))
        if not self._is_over:
            self.record.note(command.name, ended)
            self._setup.say(f"{command.name}: {how} after {ended.seconds:.0f} s; {ended.said}")
        return how

    def _start(self, words: Sequence[str], output: int) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_over:
                return None
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=dict(self._setup.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> tuple[str, int | None]:
        try:
            code = process.wait(max(0.0, seconds - self._setup.grace_s))
        except subprocess.TimeoutExpired:
            # As by Ctrl-C: pytest and the benchmarks write what they have.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._setup.grace_s)
            _kill(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)  # a driver may hold it
            return STOPPED, None
        return (DONE if code == 0 else FAILED), code


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: the group is its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip()[:160] if lines else "it printed nothing"
