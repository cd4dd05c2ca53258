"""Ports for processes that must be told theirs."""

from __future__ import annotations

from pagemesh.cli.up.ports import pick_free


def free_port() -> int:
    """A port of the loopback address on which nobody listens, and that no outgoing connection is given."""
    return pick_free("127.0.0.1", 1)[0]
