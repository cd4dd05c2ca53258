"""Beats between an engine's process and its worker, both played by threads here."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from pagemesh.engine_process import heartbeat
from pagemesh.engine_process.heartbeat import start_beating, watch_beats

INTERVAL = 0.02


@pytest.fixture(autouse=True)
def fast_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_INTERVAL", INTERVAL)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    worker, engine = socket.socketpair()
    yield worker, engine
    worker.close()
    engine.close()


def watching() -> bool:
    return any(thread.name == "heartbeat-watch" for thread in threading.enumerate())


def until_nobody_watches() -> None:
    deadline = time.monotonic() + 5
    while watching():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_process_that_beats_is_left_alone_until_it_ends(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    killed, stop, checks = threading.Event(), threading.Event(), []
    watch_beats(ends[0].detach(), killed.set, silence_limit=25)
    start_beating(ends[1].detach(), lambda: checks.append(1), stop)
    assert not killed.wait(50 * INTERVAL)
    assert len(checks) > 10
    stop.set()
    until_nobody_watches()
    assert not killed.is_set()


def test_a_process_that_is_silent_is_killed(ends: tuple[socket.socket, socket.socket]) -> None:
    killed = threading.Event()
    started = time.monotonic()
    watch_beats(ends[0].detach(), killed.set, silence_limit=5)
    assert killed.wait(5)
    assert time.monotonic() - started >= 5 * INTERVAL
    until_nobody_watches()


def test_a_silence_that_ends_in_time_does_not_count(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    killed = threading.Event()
    watch_beats(ends[0].detach(), killed.set, silence_limit=25)
    for _ in range(3):
        assert not killed.wait(15 * INTERVAL)
        ends[1].send(b"\0")
    assert not killed.is_set()


def test_a_worker_that_does_not_read_does_not_stop_the_beats(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    stop, checked = threading.Event(), threading.Event()
    ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    ends[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            ends[1].send(b"\0" * 1024)
    start_beating(ends[1].detach(), checked.set, stop)
    for _ in range(3):
        checked.clear()
        assert checked.wait(5)
    stop.set()
