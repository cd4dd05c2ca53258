"""Counts what one streamed chat with remote prefill crosses. `python -m scripts.chat_path [--list]`.

A mesh of `pagemesh up` with the demo model answers chats of the same kind, one after the other. A function counts where
a process executes it

- in three quarters of the chats at least: what happens every few seconds or chats is left out, and one chat for which
  a process was late changes nothing;
- not while nobody asks: beats, reports of an unchanged load and checks of health are left out;
- whatever the times are that the mesh measures, and whether tokens reach the router one by one: `BY_CHANCE`.

Nothing may be near that share, on any machine. So a chat's window stays open until the workers have told the kvstore
all, the router waits for the index however long it takes, and workers compute on two cores and no GPU.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pagemesh.config.environment import API_KEY_VARIABLE
from pagemesh.local.processes import bound_to
from scripts.executed import (
    Executed,
    Process,
    Recording,
    Sources,
    executed_in_most,
    totals,
    union,
    until,
)
from scripts.house import ROOT, product_files

NUM_WARM_UP: Final = 4
"""Chats before what is recorded: they import what is imported late."""
NUM_CHATS: Final = 12
SHARE: Final = 0.75
NUM_TOKENS: Final = 64
"""At most, of an answer: costs of decodes are fitted anew at every 16th step, and so in each chat."""
BY_CHANCE: Final = {
    "estimates:NonNegativeLeastSquares._explained": "the best fit has a negative coefficient",
    "estimates:_present": "likewise",
    "read_ahead:merge": "a token waits when the router comes to read it",
    "read_ahead:can_follow": "likewise",
    "chat_response:ChatResponder._frame": "the last token, which has no text, does not come alone",
}
"""Functions that do not count, by file and name, and what must happen that they run."""
IDLE_S: Final = 3.0
"""Three heartbeats; nothing that happens all the time has a longer period."""
SETTLE_S: Final = 1.2
"""From the end of an answer until nothing of it is left to do: the router remembers for a second what was about to be
cached, and is told sooner that the workers have nothing to do."""
START_DEADLINE_S: Final = 120.0
CALL_DEADLINE_S: Final = 30.0
STOP_DEADLINE_S: Final = 15.0

PROCESSES: Final = (
    "router",
    "kvstore",
    "prefill-0",
    "engine of prefill-0",
    "decode-0",
    "engine of decode-0",
)
"""That a chat goes through; the gateway is Envoy."""

_FLAGS: Final = (
    *("--model", str(ROOT / "models/demo"), "--no-sample"),
    *("--device", "cpu", "--threads", "2"),
    *("--remote-prefill-min-tokens", "16", "--lookup-timeout", "10"),
)
_QUESTION: Final = "{}: " + "tell me all that you know about the blocks of a paged cache, " * 3
"""Begins otherwise each time, so that nobody has a block of it."""
_REMOTE_PREFILLS: Final = re.compile(
    r'^pagemesh:remote_prefills_total\{.*outcome="complete".*\} (\S+)$', re.MULTILINE
)


class Mesh:
    """A mesh that records."""

    def __init__(self, port: int, recording: Recording) -> None:
        self._port = port
        self._recording = recording

    def wait_until_complete(self) -> None:
        """Wait until the router reaches both workers, and all processes record."""
        wanted = {"decode_workers": 1, "prefill_workers": 1}
        until(lambda: self._health().items() >= wanted.items(), "the router reaches both workers")
        if missing := set(PROCESSES) - set(self._processes()):
            raise RuntimeError(f"no process of {', '.join(sorted(missing))} records")

    def idle(self, window: str) -> Executed:
        """What is executed while nobody asks."""
        with self._recording.window(window):
            time.sleep(IDLE_S)
        return self._executed(window)

    def record_chat(self, window: str) -> Executed:
        """What is executed for a chat. Raises RuntimeError unless its prompt was prefilled remotely."""
        before = self._num_remote_prefills()
        with self._recording.window(window):
            self.chat(window)
            time.sleep(SETTLE_S)
        if self._num_remote_prefills() != before + 1:
            raise RuntimeError(f"the prompt of {window} was not prefilled by the prefill worker")
        return self._executed(window)

    def chat(self, name: str) -> None:
        """Ask, and read the streamed answer."""
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": _QUESTION.format(name)}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        answer = _call(self._port, "POST", "/v1/chat/completions", body)
        if not answer.endswith("data: [DONE]\n\n"):
            raise RuntimeError(f"the answer to {name} has no end: {answer}")

    def _executed(self, window: str) -> Executed:
        return {
            name: self._recording.executed(window, process)
            for name, process in self._processes().items()
        }

    def _processes(self) -> dict[str, Process]:
        processes = {each.number: each for each in self._recording.processes()}
        names = {number: _name(each.command) for number, each in processes.items()}
        named = {}
        for number, name in names.items():
            whose = names.get(processes[number].parent)
            named[f"engine of {whose}" if name == "engine" else name] = processes[number]
        return named

    def _health(self) -> dict[str, object]:
        with suppress(OSError, http.client.HTTPException, RuntimeError):
            return dict(json.loads(_call(self._port, "GET", "/health")))
        return {}

    def _num_remote_prefills(self) -> float:
        port = _option(self._processes()["decode-0"].command, "--metrics-port")
        return sum(map(float, _REMOTE_PREFILLS.findall(_call(int(port), "GET", "/metrics"))))


def _call(port: int, method: str, path: str, body: object = None) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_DEADLINE_S)
    try:
        headers = {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.read().decode()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{method} {path} was answered with {response.status}: {answer}")
    return answer


def _name(command: tuple[str, ...]) -> str:
    """Of a process of the mesh, by its command line."""
    if "-m" not in command:
        return " ".join(command)
    module = command[command.index("-m") + 1]
    if module != "pagemesh.cli":
        return "engine" if module == "pagemesh.engine_process.server" else module.rpartition(".")[2]
    if "--worker-id" in command:
        return _option(command, "--worker-id")
    return command[command.index(module) + 1]


def _option(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


@contextmanager
def _running_mesh(folder: Path) -> Iterator[Mesh]:
    """Prints what it logged when something goes wrong."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    recording = Recording(folder / "calls", Sources(ROOT, product_files(ROOT).values()))
    environment = {k: v for k, v in recording.environment.items() if k != API_KEY_VARIABLE}
    flags = (*_FLAGS, "--port", str(port), "--log-dir", str(folder / "logs"))
    command = (sys.executable, "-P", "-m", "pagemesh.cli", "up", *flags)
    output = folder / "output.txt"
    with output.open("w") as stdout:
        process = subprocess.Popen(
            bound_to(os.getpid(), command),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C is for this program, which ends the mesh.
            start_new_session=True,
        )
    try:
        until(
            lambda: "Press Ctrl-C" in output.read_text() or process.poll() is not None,
            "pagemesh up answers",
            START_DEADLINE_S,
        )
        if process.poll() is not None:
            raise RuntimeError(f"pagemesh up ended with status {process.returncode}")
        yield Mesh(port, recording)
    except Exception:
        for path in (output, *sorted(folder.glob("logs/*"))):
            print(
                f"{path.name}:", *path.read_text().splitlines()[-20:], sep="\n  ", file=sys.stderr
            )
        raise
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        # Its parts die with it.
        process.kill()
        process.wait(STOP_DEADLINE_S)


def count(folder: Path) -> Executed:
    """What one chat crosses, by process; the mesh logs into the folder. Takes about a minute."""
    with _running_mesh(folder) as mesh:
        mesh.wait_until_complete()
        for number in range(NUM_WARM_UP):
            mesh.chat(f"warm-up {number}")
        time.sleep(SETTLE_S)
        idle = mesh.idle("idle")
        chats = [mesh.record_chat(f"chat {number}") for number in range(NUM_CHATS)]
    found = executed_in_most(chats, SHARE, idle)
    return {
        name: frozenset(
            each for each in found[name] if f"{Path(each.file).stem}:{each.name}" not in BY_CHANCE
        )
        for name in PROCESSES
    }


def main() -> None:
    """Print the figures by process and in all, with --list the functions as well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(".")[0])
    parser.add_argument("--list", action="store_true", help="the functions behind the figures too")
    options = parser.parse_args()
    # Ends the mesh as well.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = count(Path(folder))
    except (RuntimeError, OSError) as error:
        sys.exit(f"not counted: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    print(f"{'files':>6} {'functions':>10} {'lines':>6}")
    for name, functions in {**found, "in all": union(found)}.items():
        sums = totals(functions)
        print(f"{sums.files:6} {sums.functions:10} {sums.lines:6}  {name}")
    for name, functions in found.items() if options.list else ():
        print(
            f"\n{name}:", *(f"{f.file}:{f.first} {f.name}" for f in sorted(functions)), sep="\n  "
        )


if __name__ == "__main__":
    main()
