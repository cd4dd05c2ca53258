"""How a gateway ends: told to, with what it has begun; by itself, with Envoy; and Envoy never without it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from pagemesh.config import GatewayConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.process import run
from tests.gateway.conftest import Gateway, running_gateway

pytestmark = pytest.mark.costly

GRACE_S = 2.0
PATIENCE_S = 30.0
"""A grace period in which everything ends that can, on a busy machine too."""


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that gives its requests time."""
    with running_gateway(tmp_path, grace_period=PATIENCE_S) as running:
        yield running


def envoy_of(running: Gateway) -> psutil.Process:
    (envoy,) = psutil.Process(running.process.pid).children()
    assert envoy.name() == "envoy"
    return envoy


@contextmanager
def streaming(running: Gateway) -> Iterator[Iterator[str]]:
    """An answer whose first token has come."""
    running.router.openai.next_token.release()
    body = {"model": "paced:stopping"}
    url = f"{running.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=20) as response:
        lines = (line for line in response.iter_lines() if line)
        assert next(lines).startswith("data: ")
        yield lines


def refuses_connections(running: Gateway) -> bool:
    try:
        httpx.get(f"{running.url}/health", timeout=2)
    except httpx.ConnectError:
        return True
    except (httpx.ReadError, httpx.RemoteProtocolError):
        # One that was taken in the moment in which the socket was closed ends without an answer.
        pass
    return False


def wait_until_closed(running: Gateway) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not refuses_connections(running):
        assert time.monotonic() < deadline, "it takes connections all the time"


def test_told_to_stop_it_finishes_what_it_has_begun(patient: Gateway) -> None:
    with httpx.Client(timeout=5) as kept, streaming(patient) as lines:
        kept.get(f"{patient.url}/health")
        patient.process.send_signal(signal.SIGTERM)
        wait_until_closed(patient)
        # Whoever has a connection may use it once more.
        last = kept.get(f"{patient.url}/health")
        assert last.status_code == 200
        assert last.headers["connection"] == "close"
        assert patient.process.poll() is None
        patient.router.openai.next_token.release()
        assert next(lines).startswith("data: ")
    stopped_at = time.monotonic()
    assert patient.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - stopped_at < PATIENCE_S / 2


def test_what_takes_longer_than_the_grace_period_is_cut_off(tmp_path: Path) -> None:
    with running_gateway(tmp_path, grace_period=GRACE_S) as hasty:
        with streaming(hasty) as lines:
            began = time.monotonic()
            hasty.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                next(lines)
            assert GRACE_S <= time.monotonic() - began < PATIENCE_S
        assert hasty.process.wait(PATIENCE_S) == 0


def test_a_signal_to_its_whole_group_does_not_end_envoy(patient: Gateway) -> None:
    with streaming(patient) as lines:
        os.killpg(patient.process.pid, signal.SIGINT)
        wait_until_closed(patient)
        patient.router.openai.next_token.release()
        assert next(lines).startswith("data: ")


def test_it_ends_as_envoy_ends(own_gateway: Gateway) -> None:
    envoy_of(own_gateway).kill()
    assert own_gateway.process.wait(5) == -signal.SIGKILL


def test_envoy_does_not_outlive_it(own_gateway: Gateway) -> None:
    envoy = envoy_of(own_gateway)
    own_gateway.process.kill()
    envoy.wait(5)


def test_its_own_admin_socket_goes_with_it(tmp_path: Path) -> None:
    with running_gateway(tmp_path, admin_socket=None, grace_period=PATIENCE_S) as running:
        (folder,) = tmp_path.glob("pagemesh-*")
        assert folder.stat().st_mode & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(folder / "admin.sock"))
        with streaming(running) as lines:
            running.process.send_signal(signal.SIGTERM)
            wait_until_closed(running)
            running.router.openai.next_token.release()
            assert next(lines).startswith("data: ")
        assert running.process.wait(PATIENCE_S) == 0
    assert not folder.exists()


def test_where_a_socket_has_no_room_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("a" * 80)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(ConfigError, match="set --admin-socket or TMPDIR"):
        run(GatewayConfig(routers=("router:7000",)))
    assert not list(folder.iterdir())
