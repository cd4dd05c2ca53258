"""A part whose port somebody has says so in one line, and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = {"kvstore": [], "router": ["--kvstore", "127.0.0.1:1"], "decode": []}


@pytest.mark.product(most=3)
@pytest.mark.parametrize(
    ("flag", "said"), [("--port", "cannot listen"), ("--metrics-port", "cannot serve metrics")]
)
@pytest.mark.parametrize("part", PARTS)
def test_a_taken_port_is_named(part: str, flag: str, said: str, demo_model: Path) -> None:
    command = [sys.executable, "-P", "-m", "pagemesh.cli", part, *PARTS[part], "--port", "0"]
    if part != "kvstore":
        command += ["--model", str(demo_model)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [*command, flag, str(port)], capture_output=True, text=True, timeout=60
        )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"pagemesh {part}: {said} on 127.0.0.1:{port}: Address already in use\n"
