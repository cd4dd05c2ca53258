"""Ports for processes that must be told theirs."""

from __future__ import annotations

from contextlib import ExitStack

from pagemesh.cli.up.readiness import held_ports

_HELD = ExitStack()


def free_port() -> int:
    """A port of the loopback address on which nobody listens, and that nobody else is given.

    It is held until the tests' process ends: whoever is told of it may listen there, and do so again.
    """
    return _HELD.enter_context(held_ports("127.0.0.1", 1))[0]
