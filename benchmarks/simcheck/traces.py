"""The traces that are replayed and simulated: alike for every policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from pagemesh.sim.settings import WorkloadConfig
from pagemesh.sim.trace import Trace, TraceRequest
from pagemesh.sim.workloads import make_trace

MAX_TOKENS: Final = 1500
"""Of a prompt and its answer; longer ones are left out, with what follows them."""

MAX_WAITING_REQUESTS: Final = 16
"""That a router takes at a time; only a burst has more."""

_PREFIXES: Final = WorkloadConfig(
    num_prompts=100,
    prefixes=24,
    prefix_tokens=640,
    prompt_tokens=48,
    output_tokens=24,
    zipf=0.7,
)


class Workload(NamedTuple):
    """Requests, and how many of them come in a second."""

    config: WorkloadConfig
    rate: float


WORKLOADS: Final[Mapping[str, Workload]] = {
    # So that two cores suffice for eight workers most of the time.
    "prefixes": Workload(_PREFIXES, 6.0),
    "burst": Workload(_PREFIXES, 40.0),
    "chats": Workload(
        WorkloadConfig(
            workload="sharegpt",
            num_prompts=70,
            turns=3.0,
            prefix_tokens=96,
            prompt_tokens=64,
            output_tokens=32,
            think_time=1.5,
            seed=1,
        ),
        6.0,
    ),
}
"""Requests behind shared prefixes, more of them than can be served, and conversations."""


def check_trace(workload: str, scale: float) -> Trace:
    """One of the workloads, or as much of it."""
    config, rate = WORKLOADS[workload]
    config = replace(config, num_prompts=round(scale * config.num_prompts))
    kept: dict[int, int] = {}
    trace: list[TraceRequest] = []
    for number, request in enumerate(make_trace(config)):
        if request.num_total_tokens > MAX_TOKENS:
            continue
        if request.after is None:
            kept[number] = len(trace)
            trace.append(replace(request, arrival=request.arrival / rate))
        elif request.after in kept:
            kept[number] = len(trace)
            trace.append(replace(request, after=kept[request.after]))
    return trace
