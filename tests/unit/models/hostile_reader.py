"""A process that reads GGUF files that somebody spoiled, and tells what came of each and what it took.

What torch and Rust take is not seen from Python, and a file may end the process that reads it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pagemesh.config import ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.models.loader import load_model
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.model_defaults import load_generation_defaults

MIB: Final = 2**20
_MOST_BYTES: Final = 2**30
"""Of address space beyond what the process has; then Python, torch and Rust each fail in their own way."""


class Reading(NamedTuple):
    """What came of a file."""

    refusal: str | None  # None where it was read
    fault: str | None  # an exception that is no refusal
    seconds: float  # of the processor
    grown: int  # most bytes beyond those that the process had


class HostileReader:
    """The process; `close` ends it, and one that a file ended is started anew."""

    def __init__(self, whole: Sequence[Path]) -> None:
        """It reads these first, so that libraries are loaded and kernels are made."""
        self._command = [sys.executable, "-m", "tests.unit.models.hostile_reader", *map(str, whole)]
        self._process = self._start()

    def read(self, path: Path) -> Reading:
        """Have a file read; AssertionError where that ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        line = self._process.stdout.readline()
        if not line:
            self.close()
            ended, self._process = self._process, self._start()
            raise AssertionError(f"reading {path} ended the process with {ended.returncode}")
        return Reading(*json.loads(line))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True, bufsize=1)


def read_all(path: Path) -> None:
    """As router and worker do."""
    tokenizer = Tokenizer(path)
    tokenizer.encode_batch(["abc \0A é日🙂", "[CLS]<s>", ""], add_special_tokens=True)
    load_generation_defaults(path)
    # With a longer one, its table of rotations takes memory for as many tokens as the file says.
    load_model(ModelConfig(str(path), threads=1, max_model_len=2))


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def _read(path: Path) -> Reading:
    # The peak begins anew.
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = _memory("VmRSS"), time.process_time()
    refusal = fault = None
    try:
        read_all(path)
    except ConfigError as error:
        refusal = error.message
    except Exception as error:
        fault = repr(error)
    return Reading(refusal, fault, time.process_time() - begun, _memory("VmHWM") - before)


def main() -> None:
    """Read the files that are named, and answer each path of stdin by a line."""
    for path in map(Path, sys.argv[1:]):
        read_all(path)
    most = _memory("VmSize") + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in sys.stdin:
        print(json.dumps(_read(Path(line.rstrip("\n")))), flush=True)


if __name__ == "__main__":
    main()
