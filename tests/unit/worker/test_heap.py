"""A worker keeps the memory of its messages, in a process of its own because it is the process's setting."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys
from pagemesh.worker.heap import keep_freed_memory

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
print(faults() - before)
"""

GIVING_BACK = """
import sys
from pathlib import Path
from pagemesh.worker.heap import give_back_freed_memory, keep_freed_memory

def num_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

keep_freed_memory()
before = num_pages()
pieces = [bytes(range(256)) * 16 for _ in range(16_384)]
del pieces
if "give" in sys.argv:
    give_back_freed_memory()
print(num_pages() - before)
"""


def kept_pages(*arguments: str) -> int:
    """Of a process that took and freed 64 MiB, which are 16,384 pages."""
    command = [sys.executable, "-c", GIVING_BACK, *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return int(output)


def page_faults(*arguments: str) -> int:
    """Of a process that forty times takes and frees 16 MiB, which is 4,096 pages each time."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return int(output)


def test_freed_memory_is_taken_again_without_new_pages() -> None:
    assert page_faults("keep") < 1_000


def test_without_it_the_system_takes_memory_back_each_time() -> None:
    assert page_faults() > 5_000


def test_what_is_not_needed_again_is_given_back() -> None:
    assert kept_pages() > 12_000
    assert kept_pages("give") < 2_000
