"""Real processes lend each other cores, and are killed and stopped while they hold some."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pagemesh.engine.shared_cores import core_table

DEADLINE = 30.0
PATIENT = 60.0
"""Longer than any test: nobody takes what was not granted."""


class User:
    """A process with a place in a table."""

    def __init__(self, table: int, place: int, patience: float = PATIENT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.core_user", *map(str, (table, place, patience))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[table],
        )
        self.answer()

    def ask(self, command: str) -> float:
        self.tell(command)
        return self.answer()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return float(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE)


class Host:
    """A table, and the processes that have a place in it."""

    def __init__(self, stack: ExitStack, num_cores: int, *shares: int) -> None:
        self._stack = stack
        self.table = stack.enter_context(core_table(num_cores, shares))
        self.users: list[User] = []

    def start(self, place: int, patience: float = PATIENT) -> User:
        user = User(self.table, place, patience)
        self._stack.callback(user.kill)
        return user

    def num_held(self) -> int:
        """Read while nobody can take more: all numbers are then of one moment, or already too high."""
        fcntl.lockf(self.table, fcntl.LOCK_EX, 1, 0)
        try:
            numbers = array("I", os.pread(self.table, 1 << 12, 0))
        finally:
            fcntl.lockf(self.table, fcntl.LOCK_UN, 1, 0)
        return sum(numbers[3::3])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_an_idle_workers_cores_are_lent_and_come_back(stack: ExitStack) -> None:
    host = Host(stack, 4, 2, 2)
    prefill, decode = host.start(0), host.start(1)
    assert prefill.ask("take 4") == 4
    decode.tell("take 1")
    # Whoever waits for its cores is in the table: the borrower sees it at its next layer.
    deadline = time.monotonic() + DEADLINE
    while prefill.ask("adjust") == 4:
        assert time.monotonic() < deadline
    assert prefill.ask("adjust") == 3
    assert decode.answer() == 1
    assert decode.ask("take 4") == 1
    assert prefill.ask("adjust") == 2
    assert decode.ask("adjust") == 2
    assert prefill.ask("rest") == 0
    assert decode.ask("adjust") == 4
    assert decode.ask("take 4") == 4
    assert prefill.ask("borrowed") > 0
    assert prefill.ask("waited") == 0 < decode.ask("waited")


def test_more_threads_than_cores_are_never_granted(stack: ExitStack) -> None:
    assert Host(stack, 3, 1, 1).start(0).ask("take 64") == 3


def test_the_cores_of_a_killed_worker_are_free_at_once(stack: ExitStack) -> None:
    host = Host(stack, 2, 1, 1)
    prefill, decode = host.start(0), host.start(1)
    assert prefill.ask("take 2") == 2
    prefill.kill()
    assert host.num_held() == 2
    assert decode.ask("take 1") == 1
    assert host.num_held() == 1
    assert decode.ask("waited") < PATIENT
    assert decode.ask("take 2") == 2


def test_a_killed_lender_is_found_by_who_wants_more(stack: ExitStack) -> None:
    host = Host(stack, 2, 1, 1)
    prefill, decode = host.start(0), host.start(1)
    assert prefill.ask("take 1") == 1
    assert decode.ask("take 2") == 1
    prefill.kill()
    deadline = time.monotonic() + DEADLINE
    while decode.ask("take 2") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_that_is_started_again_takes_its_place(stack: ExitStack) -> None:
    host = Host(stack, 2, 1, 1)
    prefill = host.start(0)
    assert prefill.ask("take 2") == 2
    prefill.kill()
    again = host.start(0)
    assert host.num_held() == 0
    assert again.ask("take 2") == 2


def test_a_stopped_borrower_is_waited_for_no_longer_than_the_patience(stack: ExitStack) -> None:
    host = Host(stack, 2, 1, 1)
    prefill, decode = host.start(0), host.start(1, patience=0.2)
    assert prefill.ask("take 2") == 2
    prefill.process.send_signal(signal.SIGSTOP)
    assert decode.ask("take 2") == 1
    assert 0.2 <= decode.ask("waited") < DEADLINE
    prefill.process.send_signal(signal.SIGCONT)
    assert prefill.ask("adjust") == 1
    assert host.num_held() == 2


def test_a_lock_that_a_stopped_worker_has_keeps_nobody_from_its_own(stack: ExitStack) -> None:
    host = Host(stack, 2, 1, 1)
    decode = host.start(1, patience=0.05)
    fcntl.lockf(host.table, fcntl.LOCK_EX, 1, 0)
    try:
        assert decode.ask("take 2") == 1
        assert decode.ask("adjust") == 1
    finally:
        fcntl.lockf(host.table, fcntl.LOCK_UN, 1, 0)
    assert decode.ask("adjust") == 2


def test_no_core_is_held_twice_while_workers_play_and_are_killed(stack: ExitStack) -> None:
    host = Host(stack, 4, 1, 1, 2)
    draws = random.Random(7)
    users = [host.start(place) for place in range(3)]
    for user in users:
        user.ask("play")
    most = 0
    for _ in range(6):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            most = max(most, num_held := host.num_held())
            assert num_held <= 4
        place = draws.randrange(3)
        users[place].kill()
        users[place] = host.start(place)
        users[place].ask("play")
    assert most == 4
    for user in users[1:]:
        user.kill()
    deadline = time.monotonic() + DEADLINE
    while host.num_held() < 3:
        assert time.monotonic() < deadline, "the cores of the dead are not lent"
