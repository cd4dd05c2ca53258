"""Where traces come from: a file, or a rule; and where those of a rule are written to."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pagemesh.config.environment import require
from pagemesh.errors import ConfigError
from pagemesh.sim.mooncake import read_mooncake, trace_of, write_mooncake
from pagemesh.sim.settings import WorkloadConfig
from pagemesh.sim.sharegpt import converse, read_sharegpt, write_sharegpt
from pagemesh.sim.trace import Trace
from pagemesh.sim.workloads import make_conversations, make_mooncake, make_trace
from pagemesh.workload.chats import parse_json
from pagemesh.workload.files import read_text


class Workload(NamedTuple):
    """A trace, and whether its times are real ones."""

    trace: Trace
    is_timed: bool
    """Else one request comes a second."""


def load_workload(config: WorkloadConfig) -> Workload:
    """From --trace or by --workload."""
    if config.trace is None:
        return Workload(make_trace(config), is_timed=False)
    text = read_text("--trace", config.trace)
    if text.lstrip().startswith("["):
        content = parse_json("--trace", config.trace, text)
        conversations = read_sharegpt(config.trace, content, config.chars_per_token)
        trace = converse(conversations, config)
        is_timed = False
    else:
        trace = trace_of(read_mooncake(config.trace, text.split("\n")))
        is_timed = True
    if not trace:
        raise ConfigError(f"--trace is {config.trace!r}, which has no requests")
    return Workload(trace[: config.num_prompts], is_timed)


def at_rate(workload: Workload, rate: float | None, num_decode: int) -> Trace:
    """The trace with its arrivals scaled to a mean rate; None leaves those that are real."""
    if rate is None and workload.is_timed:
        return workload.trace
    factor = 1 / (num_decode if rate is None else rate)
    if workload.is_timed:
        num_gaps, last = len(workload.trace) - 1, workload.trace[-1].arrival
        if num_gaps and not last:
            raise ConfigError(
                f"--request-rate is {rate!r}, but all {num_gaps + 1} requests of --trace come at one time"
            )
        factor *= num_gaps / last if num_gaps else 0.0
    return [
        request if request.after is not None else replace(request, arrival=factor * request.arrival)
        for request in workload.trace
    ]


def write_trace(config: WorkloadConfig, path: str) -> None:
    """The requests of --workload as a file."""
    match config.workload:
        case "mooncake":
            write_mooncake(path, make_mooncake(config))
        case "sharegpt":
            # Else a message may have no character, and nothing to read a token from.
            chars = config.chars_per_token
            require(chars >= 1, "--chars-per-token", chars, "at least 1 with --write-trace")
            write_sharegpt(path, make_conversations(config), chars)
        case other:
            raise ConfigError(
                f"--write-trace is {path!r}, but there is no form of file for --workload {other}"
            )
