"""Runs Envoy, and lets it finish what it has begun when the gateway is told to stop.

    python -P -m pagemesh.gateway.supervisor <admin socket> <its folder, to be removed, or ""> <grace period> <envoy> …

Envoy by itself ends at once at SIGTERM, and with it every answer that is on its way. This stays beside it, so it is
a program of its own that loads nothing but the standard library and `pagemesh.local`.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from pagemesh.local.local_http import LocalConnection
from pagemesh.local.processes import bound_to

_POLL_INTERVAL: Final = 0.05
_QUIET_LOOKS: Final = 2
"""In a row that see no request before there is none: clients may just be about to send their next one."""
_CALL_TIMEOUT: Final = 1.0
_ACTIVE: Final = "http.gateway.downstream_rq_active"


def supervisor_command(
    admin_socket: str, folder: str, grace_period: float, envoy: list[str]
) -> list[str]:
    """The command line that runs Envoy's under supervision."""
    program = [sys.executable, "-P", "-m", "pagemesh.gateway.supervisor"]
    return [*program, admin_socket, folder, str(grace_period), *envoy]


def drain(admin_socket: str, patience: float) -> None:
    """Have Envoy take no new connections and close each one with its answer, and wait until no request is left.

    `patience` seconds at most. An Envoy that does not answer is taken as drained.
    """
    deadline = time.monotonic() + patience
    num_quiet = 0
    try:
        # Of itself, it says with each answer from now on that the connection ends with it.
        _call(admin_socket, "POST", "/healthcheck/fail")
        _call(admin_socket, "POST", "/drain_listeners")
        # Envoy tells nobody when the last request ends.
        while num_quiet < _QUIET_LOOKS and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
            num_quiet = 0 if _num_active_requests(admin_socket) else num_quiet + 1
    except (OSError, http.client.HTTPException):
        return


def _num_active_requests(admin_socket: str) -> int:
    answer = _call(admin_socket, "GET", f"/stats?filter=^{_ACTIVE}$")
    found = re.search(rf"{_ACTIVE}: (\d+)", answer)
    return int(found[1]) if found else 0


def _call(admin_socket: str, method: str, path: str) -> str:
    """The answer's body. Raises OSError or HTTPException without one."""
    connection = LocalConnection(Path(admin_socket), timeout=_CALL_TIMEOUT)
    try:
        connection.request(method, path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def main() -> int:
    """Envoy's exit status; when it was killed by a signal, this process is too."""
    admin_socket, folder, grace_period, *command = sys.argv[1:]
    # In a group of its own: signals of a terminal, and to the whole group, are for this process to pass on.
    envoy = subprocess.Popen(bound_to(os.getpid(), tuple(command)), process_group=0)

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        drain(admin_socket, float(grace_period))
        envoy.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        status = envoy.wait()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
