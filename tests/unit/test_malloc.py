"""A worker keeps the memory of its messages, in a process of its own because it is the process's setting."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, resource, sys
from pagemesh.malloc import keep_freed_memory

if "keep" in sys.argv:
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    return [bytes(1 << 20) for _ in range(16)]

use()
before = faults()
for _ in range(40):
    use()
print((faults() - before) * os.sysconf("SC_PAGESIZE"))
"""

GIVING_BACK = """
import os, sys
from pathlib import Path
from pagemesh.malloc import give_back_freed_memory, keep_freed_memory

def num_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

keep_freed_memory()
before = num_pages()
pieces = [bytes(range(256)) * 16 for _ in range(16_384)]
del pieces
if "give" in sys.argv:
    give_back_freed_memory()
print((num_pages() - before) * os.sysconf("SC_PAGESIZE"))
"""


MIB = 1 << 20


def kept_bytes(*arguments: str) -> int:
    """Of a process that took and freed 64 MiB."""
    command = [sys.executable, "-c", GIVING_BACK, *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return int(output)


def faulted_bytes(*arguments: str) -> int:
    """That the system gave to a process that forty times takes and frees 16 MiB; pages have any size."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return int(output)


def test_freed_memory_is_taken_again_without_new_pages() -> None:
    assert faulted_bytes("keep") < 4 * MIB


def test_without_it_the_system_takes_memory_back_each_time() -> None:
    assert faulted_bytes() > 20 * MIB


def test_what_is_not_needed_again_is_given_back() -> None:
    assert kept_bytes() > 47 * MIB
    assert kept_bytes("give") < 8 * MIB
