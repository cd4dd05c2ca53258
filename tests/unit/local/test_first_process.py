"""What the kernel leaves to a container's first process: SIGTERM, and processes whose parent has died."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

NUMBERED = """
import os, signal
from pagemesh.local.processes import heed_sigterm
pid = os.getpid()
os.getpid = lambda: {number}
heed_sigterm()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
os.kill(pid, signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("number", "printed", "code"),
    [(1, "False\n", 128 + signal.SIGTERM), (2, "True\n", -signal.SIGTERM)],
    ids=["the first", "any other"],
)
def test_sigterm_ends_a_process_that_has_no_handler_for_it_yet(
    number: int, printed: str, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NUMBERED.format(number=number)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.returncode) == (printed, code)


REAPED = """
import ctypes, os, subprocess, sys
from pagemesh.local.processes import reap_orphans
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
read, write = os.pipe()
part = subprocess.Popen(
    [sys.executable, "-c", "import subprocess; subprocess.Popen(['cat'], stdin=0, pass_fds=[0])"],
    stdin=read, stdout=subprocess.PIPE, start_new_session=True,
)
os.close(read)
part.wait()
own = [subprocess.Popen(["false"], start_new_session=apart) for apart in (False, True)]
for each in own:
    os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOWAIT)
reap_orphans()
os.close(write)
part.stdout.read()
for each in own:
    each.wait()
# The orphan is the only child now, and has ended or is about to.
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
reap_orphans()
try:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
except ChildProcessError:
    print([each.returncode for each in own], "nothing left")
"""
"""A process that inherits orphans, as a container's first one does."""


def test_orphans_are_reaped_and_nobody_elses_children() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REAPED], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[1, 1] nothing left\n", done.stderr
