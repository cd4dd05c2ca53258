"""Socket options by the names that each system has for them."""

from __future__ import annotations

import socket
import sys

import pytest

from pagemesh.gateway.names import IDLE_SECONDS, VANISHED_SECONDS, keepalive_options


def values() -> dict[int, int]:
    return {option["name"]: option["int_value"] for option in keepalive_options()}


def test_linux_asks_after_silence_and_gives_up_what_nobody_acknowledges() -> None:
    found = values()
    assert found[socket.TCP_KEEPIDLE] == IDLE_SECONDS
    assert found[socket.TCP_USER_TIMEOUT] == 1000 * VANISHED_SECONDS


def test_macos_has_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", 0x10, raising=False)
    for name in ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"):
        monkeypatch.delattr(socket, name)
    found = values()
    assert found[0x10] == IDLE_SECONDS
    assert found[0x80] == VANISHED_SECONDS
