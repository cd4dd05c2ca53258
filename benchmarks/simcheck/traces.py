"""The traces that are replayed and simulated: alike for every policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pagemesh.sim.settings import WorkloadConfig
from pagemesh.sim.trace import Trace, TraceRequest
from pagemesh.sim.workloads import make_trace

RATE: Final = 6.0
"""Requests per second, so that two cores suffice for eight workers most of the time."""

MAX_TOKENS: Final = 1500
"""Of a prompt and its answer; longer ones are left out, with what follows them."""

WORKLOADS: Final[Mapping[str, WorkloadConfig]] = {
    "prefixes": WorkloadConfig(
        num_requests=100,
        prefixes=24,
        prefix_tokens=640,
        prompt_tokens=48,
        output_tokens=24,
        zipf=0.7,
    ),
    "chats": WorkloadConfig(
        workload="sharegpt",
        num_requests=70,
        turns=3.0,
        prefix_tokens=96,
        prompt_tokens=64,
        output_tokens=32,
        think_time=1.5,
        seed=1,
    ),
}
"""Requests behind shared prefixes, and conversations."""


def check_trace(workload: str, scale: float) -> Trace:
    """One of the workloads, or as much of it."""
    config = WORKLOADS[workload]
    config = replace(config, num_requests=round(scale * config.num_requests))
    kept: dict[int, int] = {}
    trace: list[TraceRequest] = []
    for number, request in enumerate(make_trace(config)):
        if request.num_total_tokens > MAX_TOKENS:
            continue
        if request.after is None:
            kept[number] = len(trace)
            trace.append(replace(request, arrival=request.arrival / RATE))
        elif request.after in kept:
            kept[number] = len(trace)
            trace.append(replace(request, after=kept[request.after]))
    return trace
