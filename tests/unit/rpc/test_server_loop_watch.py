"""A process whose event loop hangs ends; one that is merely busy does not."""

from __future__ import annotations

import subprocess
import sys

HANGING = """
import asyncio, time
from pagemesh.rpc.settling import watch_loop

async def main():
    watch_loop(0.05, 10)
    await asyncio.sleep(1)
    for _ in range(5):
        time.sleep(0.1)
        await asyncio.sleep(0)
    print("alive", flush=True)
    {then}

asyncio.run(main())
"""


def run(then: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", HANGING.format(then=then)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_loop_that_hangs_ends_its_process_and_says_where() -> None:
    ended = run("time.sleep(50)")
    assert ended.returncode == 1
    assert ended.stdout.startswith("alive\n")
    assert "its event loop hangs" in ended.stdout
    assert "in main" in ended.stdout


def test_a_loop_that_ends_by_itself_is_let_go() -> None:
    ended = run("pass")
    assert (ended.returncode, ended.stdout) == (0, "alive\n")
