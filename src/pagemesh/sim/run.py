"""`pagemesh sim`: every policy at every rate, on the same trace."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from pagemesh.config import RoutingConfig
from pagemesh.errors import ConfigError
from pagemesh.sim.model import MeshModel, read_model
from pagemesh.sim.plots import draw_plots
from pagemesh.sim.report import as_json, as_table
from pagemesh.sim.settings import PolicyName, SimConfig
from pagemesh.sim.simulation import MeshSize, Run, Simulation
from pagemesh.sim.sources import at_rate, load_workload, write_trace
from pagemesh.sim.summary import Summary, summarize
from pagemesh.sim.trace import Trace
from pagemesh.workload.drawing import require_plots
from pagemesh.workload.files import require_writable, write_text

ORACLES_LOAD_WEIGHT: Final = 0.0001
"""So little that a block more always counts for more: prompts have fewer than ten thousand."""

NUM_SAMPLES: Final = 200
"""Points in time at which loads are drawn."""


class Result(NamedTuple):
    """One policy at one rate."""

    summary: Summary
    run: Run
    wall_seconds: float


def run(config: SimConfig) -> None:
    """Simulate and print; ConfigError when a file cannot be used."""
    if config.write_trace is not None:
        write_trace(config.workload, config.write_trace)
        return
    if config.plots is not None:
        require_plots(config.plots)
    if config.json is not None:
        require_writable("--json", config.json)
    results = []
    for result in simulate_all(config):
        _show_progress(result)
        # Plots need the loads alone; records of thousands of workers are large.
        results.append(result._replace(run=replace(result.run, records=[], workers=[])))
    summaries = [result.summary for result in results]
    print(as_table(summaries))
    if config.json is not None:
        write_text("--json", config.json, as_json(summaries, settings_of(config)))
    if config.plots is not None:
        draw_plots(config.plots, [(result.summary, result.run) for result in results])


def simulate_all(config: SimConfig) -> Iterator[Result]:
    """Every policy at every rate."""
    workload = load_workload(config.workload)
    model = load_model(config)
    for rate in config.request_rate or (None,):
        trace = at_rate(workload, rate, config.decode)
        for policy in config.policies:
            # What the run before has left, in cycles, may be gigabytes.
            gc.collect()
            started = time.perf_counter()
            run = simulate(config, model, trace, policy)
            summary = summarize(run, policy, config.slo)
            yield Result(summary, run, time.perf_counter() - started)


def simulate(config: SimConfig, model: MeshModel, trace: Trace, policy: PolicyName) -> Run:
    """One policy on one trace."""
    is_oracle = policy == "oracle"
    size = MeshSize(
        num_decode=config.decode,
        num_prefill=config.prefill,
        num_routers=config.routers,
        max_waiting_requests=config.max_waiting_requests,
        request_timeout=config.request_timeout,
        index_lag=0.0 if is_oracle else config.index_lag,
        report_delay=0.0 if is_oracle else config.report_delay,
        mean_seconds_between_failures=config.faults.mean_time_between_failures,
        restart_seconds=config.faults.restart_time,
    )
    last = max((request.arrival for request in trace if request.after is None), default=0.0)
    samples = max(last, 1.0) / NUM_SAMPLES if config.plots is not None else None
    seed = config.workload.seed
    return Simulation(
        trace, model, size, routing_of(config, policy), seed=seed, sample_seconds=samples
    ).run()


def routing_of(config: SimConfig, policy: PolicyName) -> RoutingConfig:
    """The settings of a router with this policy.

    The oracle is kv_aware that looks at what workers hold alone: between equal ones, at their load.
    """
    if policy == "oracle":
        weights = ("prefix_held=1", "predicted_ttft=0", f"decode_load={ORACLES_LOAD_WEIGHT}")
        return RoutingConfig("kv_aware", config.remote_prefill_min_tokens, scorer_weights=weights)
    return RoutingConfig(
        policy, config.remote_prefill_min_tokens, scorer_weights=config.scorer_weights
    )


def load_model(config: SimConfig) -> MeshModel:
    """Of --rates, with --block-size and --cores."""
    model = MeshModel() if config.rates is None else read_model(config.rates)
    if config.block_size is not None:
        try:
            model = replace(model, block_size=config.block_size)
        except ConfigError as error:
            raise ConfigError(f"--block-size is {config.block_size!r}: {error.message}") from error
    return model if config.cores is None else replace(model, cores=config.cores)


def settings_of(config: SimConfig) -> dict[str, Any]:
    """What the figures are of, the model included."""
    return asdict(config) | {"model": asdict(load_model(config))}


def _show_progress(result: Result) -> None:
    summary, seconds = result.summary, result.wall_seconds
    print(
        f"{summary.policy} at {summary.request_rate:.2f} requests/s: {summary.num_requests} requests,"
        f" {summary.seconds:.0f} s simulated in {seconds:.1f} s,"
        f" {summary.num_requests / seconds:.0f} requests a second",
        file=sys.stderr,
    )
