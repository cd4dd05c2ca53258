"""What every engine under measurement does: it is a process of its own that speaks JSON lines.

A script beside this one adapts one engine. It runs in that engine's virtual environment, so this needs
nothing but Python. Lines on stdin, each with one answer on stdout:

    {"model": folder, "threads": 2, "dtype": "bfloat16", …}       → {"ready": true}
    {"prompts": [[5, 6], …], "num_tokens": [64, …]}                → {"seconds": 1.5, "num_tokens": [64, …]}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Engine(Protocol):
    """An engine with a model in memory."""

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        """Answer all prompts greedily, past any end of sequence; gives the lengths of the answers."""
        ...


def serve(load: Callable[[dict[str, Any]], Engine]) -> None:
    """Load the engine and answer until stdin ends."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = load(json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        call = json.loads(line)
        started = time.perf_counter()
        num_tokens = engine.generate(call["prompts"], call["num_tokens"])
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "num_tokens": num_tokens}), file=answers)
