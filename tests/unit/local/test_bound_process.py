"""A program that dies with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from pagemesh.local.processes import bound_to


def test_the_program_runs_as_if_it_had_been_started_itself() -> None:
    command = (sys.executable, "-c", "import os, sys; print(sys.argv, os.getppid())", "a b", "")
    done = subprocess.run(
        bound_to(os.getpid(), command), capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == (f"['-c', 'a b', ''] {os.getpid()}\n", "")


def test_a_program_that_cannot_run_is_named() -> None:
    command = bound_to(os.getpid(), ("/nowhere/envoy", "--version"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.stderr == "/nowhere/envoy cannot be run: No such file or directory\n"
    assert done.returncode == 1


def test_nothing_is_run_for_a_parent_that_is_gone() -> None:
    command = bound_to(os.getpid() + 1, (sys.executable, "-c", "print('alive')"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("", 1)


def test_the_program_dies_with_its_parent() -> None:
    inner = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)")
    script = (
        "import os, subprocess, sys, time\n"
        "from pagemesh.local.processes import bound_to\n"
        f"child = subprocess.Popen(bound_to(os.getpid(), {inner!r}), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        program = psutil.Process(pid)
        parent.kill()
    psutil.wait_procs([program], timeout=10.0)
    assert not program.is_running()
