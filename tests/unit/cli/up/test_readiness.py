"""Ports that `pagemesh up` gives to the parts of its mesh."""

from __future__ import annotations

import socket

import pytest

from pagemesh.cli.up import readiness as module
from pagemesh.cli.up.readiness import held_ports, require_free
from pagemesh.errors import ConfigError


def test_ports_that_are_held_differ_and_parts_may_listen_on_them_again_and_again() -> None:
    with held_ports("127.0.0.1", 50) as ports:
        assert len(set(ports)) == 50
        for port in (*ports, *ports):
            require_free("127.0.0.1", port)
            with (
                socket.create_server(("127.0.0.1", port)) as listener,
                socket.create_connection(listener.getsockname()) as client,
            ):
                listener.accept()[0].close()
                assert client.recv(1) == b""


def test_ports_that_are_held_are_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RANGE", range(20000, 20040))
    with held_ports("127.0.0.1", 10) as mine, held_ports("127.0.0.1", 10) as others:
        assert not set(mine) & set(others)
        too_many = held_ports("127.0.0.1", 40)
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1 has no 40 free ports"), too_many:
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_taken_port_is_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A bare root has no /etc/hosts, and so no localhost.
    names = {"localhost": "127.0.0.1"}
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda name, *rest, **named: resolve(names.get(name, name), *rest, **named),
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: Address already"):
            require_free(host, port)


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--host is 'no host', which is no address"):
        require_free("no host", 80)
