"""Logs that cannot be written cost nothing but lines; in a process of its own, whose stderr they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagemesh.telemetry.logs import MOST_WAITING

# More than fit into a pipe and into what waits to be written.
NUM_LINES = MOST_WAITING + 5000
PROGRAM = """
import sys
import structlog
from pagemesh.config import ServerConfig
from pagemesh.telemetry.logs import configure_logging

configure_logging(ServerConfig(), "decode")
log = structlog.get_logger("pagemesh.example")
for number in range(int(sys.argv[1])):
    log.info("line", number=number)
print("logged", flush=True)
sys.stdin.readline()
log.info("last")
"""


@contextmanager
def logging_process(num_lines: int, stderr: int) -> Iterator[subprocess.Popen[str]]:
    """One that logs lines, says so, logs another one when it is told to, and ends."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(num_lines)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def logged(process: subprocess.Popen[str]) -> bool:
    """Wait until all lines were logged."""
    assert process.stdout is not None
    return process.stdout.readline() == "logged\n"


def let_end(process: subprocess.Popen[str]) -> int:
    """Its exit code."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.close()
    return process.wait(20)


def test_a_pipe_that_nobody_reads_keeps_nobody_waiting() -> None:
    reader, writer = os.pipe()
    with logging_process(NUM_LINES, writer) as process:
        os.close(writer)
        assert logged(process)
        assert let_end(process) == 0
    os.close(reader)


def test_what_was_lost_is_told_to_who_reads_again() -> None:
    with logging_process(NUM_LINES, subprocess.PIPE) as process:
        assert logged(process)
        assert process.stderr is not None and process.stdin is not None
        # Read until the pipe had room for what waited behind it.
        lines = [json.loads(process.stderr.readline()) for _ in range(MOST_WAITING)]
        process.stdin.write("\n")
        process.stdin.close()
        lines += [json.loads(line) for line in process.stderr]
        assert process.wait(20) == 0
    events = [line["event"] for line in lines]
    numbers = [line["number"] for line in lines if line["event"] == "line"]
    assert numbers == list(range(len(numbers)))
    (loss,) = [line for line in lines if "were lost" in line["event"]]
    assert loss["event"].startswith(f"{NUM_LINES - len(numbers)} log lines were lost")
    assert (loss["level"], loss["service"]) == ("warning", "decode")
    assert events[-1] == "last"


def test_a_full_disk_ends_nobody() -> None:
    with Path("/dev/full").open("w") as full, logging_process(100, full.fileno()) as process:
        assert logged(process)
        assert let_end(process) == 0


def test_the_last_line_of_a_process_is_written() -> None:
    with logging_process(10, subprocess.PIPE) as process:
        assert logged(process)
        assert let_end(process) == 0
        assert process.stderr is not None
        events = [json.loads(line)["event"] for line in process.stderr]
    assert events == [*["line"] * 10, "last"]
