"""`pagemesh bench serve`: an OpenAI endpoint under load, at one rate after the other."""

from __future__ import annotations

import contextlib
import gc
import math
import resource
import sys
from typing import Final, NamedTuple

import uvloop

from pagemesh.bench.client import Client
from pagemesh.bench.datasets import Dataset
from pagemesh.bench.metrics import count_tokens, measure
from pagemesh.bench.offered_load import send_all
from pagemesh.bench.plots import draw_plots
from pagemesh.bench.prompt_writer import PromptWriter, endpoint_tokenizer, load_tokenizer
from pagemesh.bench.readiness import await_ready
from pagemesh.bench.report import RateResult, as_capacity, as_overview, as_table
from pagemesh.bench.result_files import ResultFiles, first_error
from pagemesh.bench.settings import BenchServeConfig
from pagemesh.workload.arrivals import due_times
from pagemesh.workload.drawing import require_plots

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


def run(config: BenchServeConfig) -> int:
    """Measure, print and write; the exit code: 1 when no request was answered, 130 when it was interrupted.

    Raises ConfigError for files that cannot be used, and another PagemeshError for an endpoint that cannot.
    """
    if config.results.plots is not None:
        require_plots(config.results.plots)
    _allow_many_connections()
    model = uvloop.run(_await_ready(config))
    bench = _Bench.prepare(config, model)
    results = bench.measure_all()
    if len(results) > 1:
        print(as_overview(results))
        if capacity := as_capacity(results):
            print(capacity)
    if config.results.plots is not None and results:
        for path in draw_plots(config.results.plots, model, results):
            print(f"{path} is written")
    if len(results) < len(config.traffic.request_rate) or results[-1].is_stopped:
        return EXIT_INTERRUPTED
    return 0 if any(result.metrics.completed for result in results) else EXIT_FAILED


async def _await_ready(config: BenchServeConfig) -> str:
    async with Client(config.endpoint) as client:
        return await await_ready(client, config.endpoint)


class _Bench(NamedTuple):
    config: BenchServeConfig
    model: str
    writer: PromptWriter
    dataset: Dataset
    files: ResultFiles

    @classmethod
    def prepare(cls, config: BenchServeConfig, model: str) -> _Bench:
        """All that can be wrong is found here. Raises ConfigError."""
        name = endpoint_tokenizer(config, model)
        files = ResultFiles(config, model, name)
        writer = PromptWriter(load_tokenizer(name))
        dataset = Dataset(config.dataset, writer)
        num_wanted = config.dataset.num_prompts * len(config.traffic.request_rate)
        if dataset.num_conversations is not None and dataset.num_conversations < num_wanted:
            print(
                f"--dataset-path has {dataset.num_conversations} conversations of a usual length for {num_wanted}"
                " requests: prompts come again, and may be found in a cache",
                file=sys.stderr,
            )
        return cls(config, model, writer, dataset, files)

    def measure_all(self) -> list[RateResult]:
        """One rate after the other, with its table; those that were measured when it is interrupted."""
        results: list[RateResult] = []
        # Prompts are made between the loops: they may take seconds, which Ctrl-C need not wait for.
        with contextlib.suppress(KeyboardInterrupt):
            if self.config.traffic.num_warmups:
                self._warm_up()
            for rate in self.config.traffic.request_rate:
                results.append(self._measure(rate))
                if results[-1].is_stopped:
                    break
        return results

    def _warm_up(self) -> None:
        samples = self.dataset.take(self.config.traffic.num_warmups)
        run = send_all(self.config, self.model, samples, [0.0] * len(samples), "warm-up")
        if run.is_stopped:
            raise KeyboardInterrupt

    def _measure(self, rate: float) -> RateResult:
        config, traffic = self.config, self.config.traffic
        samples = self.dataset.take(config.dataset.num_prompts)
        times = due_times(len(samples), rate, traffic.burstiness, config.dataset.seed)
        # What is there by now stays: the collector need not look at it while times are taken.
        gc.collect()
        gc.freeze()
        title = "all at once" if rate == math.inf else f"{rate:g} requests/s"
        run = send_all(config, self.model, samples, times, title)
        gc.unfreeze()
        count_tokens(run.records, [s.num_prompt_tokens for s in samples], self.writer.count)
        metrics = measure(
            run,
            config.results.percentiles,
            config.results.slo,
            is_limited=traffic.max_concurrency is not None,
        )
        result = RateResult(rate, metrics, run.is_stopped, first_error(run))
        print(as_table(result, config.results.shown, traffic.max_concurrency), flush=True)
        if (path := self.files.write(result, run)) is not None:
            print(f"{path} is written")
        return result


def _allow_many_connections() -> None:
    """As many as the system lets this process have: each request under way has one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse what they themselves name as the most.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
