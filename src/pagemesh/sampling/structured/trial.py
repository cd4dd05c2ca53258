"""Tries each grammar in a process that it may end, before the engine compiles it.

The library that compiles what clients describe is machine code: where it overflows its stack, or takes all memory,
no exception says so, and the process is gone. Each worker that the request moved to would follow.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final

import structlog

from pagemesh.errors import InternalError, InvalidRequestError, UnavailableError
from pagemesh.local.processes import bound_to
from pagemesh.sampling.structured.outputs import PARAM, StructuredOutputs

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

TIMEOUT_S: Final = 10.0
"""That one grammar may take. Most take about a millisecond, the worst known of the allowed sizes about 8 s."""

START_TIMEOUT_S: Final = 30.0
"""Until the process is ready, which takes a tenth of a second on a machine with nothing else to do."""

_LAST_MOMENTS_S: Final = 0.1
"""In which a process that is about to end does so by itself."""

_KILLED_S: Final = 10.0
"""In which a process that was killed is gone."""

PROGRAM: Final = "pagemesh.sampling.structured.trial_process"


class _Process:
    """Tries one grammar after the other, until one ends it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            command = (sys.executable, "-P", "-m", PROGRAM)
            self._popen = subprocess.Popen(
                bound_to(os.getpid(), command),
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        # What is read and written has the timeout of the socket.
        self._file = self._socket.makefile("rwb")
        self._is_ready = False

    def ask(self, line: bytes, timeout: float) -> None:
        """Have it try what a line says; OSError when it is gone, TimeoutError when it takes too long.

        InternalError when it does not start.
        """
        if not self._is_ready:
            try:
                self._wait(START_TIMEOUT_S)
            except OSError as error:
                raise InternalError("the process that tries grammars does not start") from error
            self._is_ready = True
        self._socket.settimeout(timeout)
        self._file.write(line)
        self._file.flush()
        self._wait(timeout)

    def kill(self) -> None:
        """End it. Any thread; whoever asks it learns that it is gone. Idempotent."""
        self._popen.kill()

    def close(self) -> int:
        """End it, if it is not about to end by itself; its status."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_LAST_MOMENTS_S)
        self._popen.kill()
        self._socket.close()
        with suppress(OSError):
            # It may hold what could not be written.
            self._file.close()
        return self._popen.wait(_KILLED_S)

    def _wait(self, timeout: float) -> None:
        self._socket.settimeout(timeout)
        if not self._file.read(1):
            raise ConnectionResetError


class GrammarTrial:
    """Owns the process, which comes with the first grammar. Any thread may `check` and `close`."""

    def __init__(self, timeout: float = TIMEOUT_S) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._process: _Process | None = None
        # Is not waited for behind a trial.
        self._closing = threading.Lock()
        self._is_closed = False

    def check(self, outputs: StructuredOutputs) -> None:
        """See how compiling it ends. Blocks.

        InvalidRequestError when it ends the process or takes too long; what else may be wrong with it is not
        told. UnavailableError when closed.
        """
        asked = dataclasses.asdict(outputs) | {"kind": outputs.kind.value}
        line = json.dumps(asked).encode() + b"\n"
        with self._lock:
            try:
                self._started().ask(line, self._timeout)
                return
            except TimeoutError:
                how = f"it takes longer than {self._timeout:g} s"
            except OSError:
                how = "the library that compiles it fails over it"
            except InternalError:
                self._end()
                raise
            status = self._end()
        log.error("grammar ended its trial", kind=outputs.kind.value, status=status, why=how)
        raise InvalidRequestError(
            f"structured_outputs.{outputs.kind.value} cannot be compiled: {how}", param=PARAM
        )

    def close(self) -> None:
        """End the process, and what is tried there. Idempotent."""
        with self._closing:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None

    def _started(self) -> _Process:
        with self._closing:
            if self._is_closed:
                raise _stopped()
            self._process = self._process or _Process()
            return self._process

    def _end(self) -> int:
        """Give the process up; how it ended. UnavailableError when that was because of `close`."""
        assert self._process is not None, "there is one when it was asked"
        status = self._process.close()
        with self._closing:
            self._process = None
            if self._is_closed:
                raise _stopped()
        return status


def _stopped() -> UnavailableError:
    return UnavailableError("the engine is stopped")
