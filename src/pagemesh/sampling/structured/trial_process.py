"""The program in which grammars are tried: it compiles what comes, and may end over it.

    python -P -m pagemesh.sampling.structured.trial_process

Reads a grammar from each line of the socket that is its standard input, and answers with a line when it is through
with it, whatever came of it; with one before the first when it is ready.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Final

import llguidance

from pagemesh.sampling.structured.matcher import make_matcher
from pagemesh.sampling.structured.outputs import StructuredKind, StructuredOutputs

MAX_MEMORY_BYTES: Final = 2 * 1024**3
"""Address space of the process."""

_STACK_BYTES: Final = 32 * 2**20
"""Half of what the engine compiles with: what fits here, fits there."""

_DONE: Final = b"\n"


def _main() -> None:
    """Compile what comes, a line each, and answer with a line."""
    # Both may reach a whole group of processes; the engine decides when its trial ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # macOS refuses limits below what a process has reserved, which there is hundreds of times what it uses.
    if sys.platform != "darwin":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    threading.stack_size(_STACK_BYTES)
    threading.Thread(target=_serve, name="grammars").start()


def _serve() -> None:
    # A vocabulary of bytes, for which no file has to be read.
    tokenizer = llguidance.LLTokenizer("byte")
    with socket.socket(fileno=0) as connection, connection.makefile("rwb") as file:
        file.write(_DONE)
        file.flush()
        for line in file:
            asked = json.loads(line)
            # Whatever it is, the engine finds it as well, and says so.
            with suppress(BaseException):
                kind = StructuredKind(asked.pop("kind"))
                make_matcher(tokenizer, StructuredOutputs(kind, **asked))
            file.write(_DONE)
            file.flush()


if __name__ == "__main__":
    _main()
