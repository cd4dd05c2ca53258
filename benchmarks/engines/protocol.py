"""What every engine under measurement does: it is a process of its own that speaks JSON lines.

A script beside this one adapts one engine. It runs in that engine's virtual environment, so this needs
nothing but Python. Lines on stdin, each with one answer on stdout:

    {"model": folder, "threads": 2, "dtype": "bfloat16", …}       → {"ready": true}
    {"prompts": [[5, 6], …], "num_tokens": [64, …]}                → {"seconds": 1.5, "num_tokens": [64, …]}
    {"prompts": …, "num_tokens": …, "due": [0.0, 0.4, …]}          → {"arrivals": [[0.1, 0.9], …]}

The last one is for a `StreamingEngine`: each prompt comes when it is due, and the answer says when its
first and its last token came. All of these are seconds since the line was read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

_LONGEST_WAIT_S = 1.0


class Engine(Protocol):
    """An engine with a model in memory."""

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        """Answer all prompts greedily, past any end of sequence; gives the lengths of the answers."""
        ...


class StreamingEngine(Engine, Protocol):
    """An engine that takes requests while others run."""

    def add(self, request_id: str, prompt: Sequence[int], num_tokens: int) -> None:
        """Take one more request, to be answered like those of `generate`."""
        ...

    def poll(self, seconds: float) -> Iterable[tuple[str, int]]:
        """Requests that have new tokens, and how many each has by now.

        An engine whose steps its caller asks for computes one here; one that computes on its own thread
        is waited for. Without requests, this comes back after so many seconds at the latest.
        """
        ...


def serve(load: Callable[[dict[str, Any]], Engine]) -> None:
    """Load the engine and answer until stdin ends."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine: Any = load(json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        call = json.loads(line)
        work = _stream if "due" in call else _generate
        print(json.dumps(work(engine, **call)), file=answers)


def _generate(engine: Engine, prompts: list[list[int]], num_tokens: list[int]) -> dict[str, Any]:
    started = time.perf_counter()
    lengths = engine.generate(prompts, num_tokens)
    return {"seconds": time.perf_counter() - started, "num_tokens": lengths}


def _stream(
    engine: StreamingEngine, prompts: list[list[int]], num_tokens: list[int], due: list[float]
) -> dict[str, Any]:
    started = time.perf_counter()
    waiting = deque(sorted(range(len(due)), key=lambda index: due[index]))
    # Ids tell the requests of this call from those of earlier ones.
    index_of: dict[str, int] = {}
    arrivals = [[0.0, 0.0] for _ in due]
    num_running = 0
    while waiting or num_running:
        now = time.perf_counter() - started
        while waiting and due[waiting[0]] <= now:
            index = waiting.popleft()
            request_id = f"{started}-{index}"
            index_of[request_id] = index
            num_running += 1
            engine.add(request_id, prompts[index], num_tokens[index])
        pause = due[waiting[0]] - now if waiting else _LONGEST_WAIT_S
        for request_id, length in engine.poll(min(pause, _LONGEST_WAIT_S)):
            now = time.perf_counter() - started
            index = index_of[request_id]
            arrivals[index] = [arrivals[index][0] or now, now]
            num_running -= length == num_tokens[index]
    return {"arrivals": arrivals}
