"""`pagemesh bench serve`: an OpenAI endpoint under load, at one rate after the other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from pagemesh.bench.client import Client
from pagemesh.bench.datasets import Dataset, Sample
from pagemesh.bench.load import Run, run_load
from pagemesh.bench.metric_names import parse_metrics, parse_percentiles
from pagemesh.bench.metrics import count_tokens, measure
from pagemesh.bench.plots import draw_plots
from pagemesh.bench.progress import Progress
from pagemesh.bench.prompt_writer import PromptWriter
from pagemesh.bench.readiness import await_ready
from pagemesh.bench.report import RateResult, as_overview, as_table
from pagemesh.bench.result_files import ResultFiles, first_error
from pagemesh.bench.schedule import due_times
from pagemesh.bench.settings import BenchServeConfig
from pagemesh.errors import ConfigError
from pagemesh.models.resolve import resolve_model_path
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.workload.drawing import require_plots
from pagemesh.workload.slo import parse_slo

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
        name = _tokenizer_name(config, model)
        files = ResultFiles(config, model, name)
        writer = PromptWriter(_load_tokenizer(name))
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
        run = uvloop.run(self._send(samples, [0.0] * len(samples), "warm-up"))
        if run.is_stopped:
            raise KeyboardInterrupt

    def _measure(self, rate: float) -> RateResult:
        config, traffic = self.config, self.config.traffic
        samples = self.dataset.take(config.dataset.num_prompts)
        times = due_times(len(samples), rate, traffic.burstiness, config.dataset.seed)
        # What is there by now stays: the collector need not look at it while times are taken.
        gc.collect()
        gc.freeze()
        run = uvloop.run(
            self._send(
                samples, times, "all at once" if rate == math.inf else f"{rate:g} requests/s"
            )
        )
        gc.unfreeze()
        count_tokens(run.records, [s.num_prompt_tokens for s in samples], self.writer.count)
        metrics = measure(
            run,
            parse_percentiles(config.results.metric_percentiles),
            parse_slo(config.results.goodput) if config.results.goodput else None,
            is_limited=traffic.max_concurrency is not None,
        )
        result = RateResult(rate, metrics, run.is_stopped, first_error(run))
        shown = parse_metrics(config.results.percentile_metrics)
        print(as_table(result, shown, traffic.max_concurrency), flush=True)
        if (path := self.files.write(result, run)) is not None:
            print(f"{path} is written")
        return result

    async def _send(self, samples: Sequence[Sample], times: Sequence[float], title: str) -> Run:
        config = self.config
        ignores_eos = config.endpoint.ignore_eos or config.dataset.dataset_name == "random"
        is_shown = not config.results.disable_tqdm
        async with Client(config.endpoint) as client:
            bodies = [
                client.body(sample, self.model, ignores_eos=ignores_eos) for sample in samples
            ]
            limit = config.traffic.max_concurrency
            with _stop_signal() as stop:
                async with Progress(len(samples), title, is_shown=is_shown) as progress:
                    return await run_load(client.send, bodies, times, limit, stop, progress)


def _tokenizer_name(config: BenchServeConfig, model: str) -> str:
    name = config.endpoint.tokenizer
    if name is None and "/" not in model and not Path(model).is_dir():
        raise ConfigError(
            f"--tokenizer is unset, but must be a folder or a hub id: the model's name, {model!r}, is none"
        )
    return name or model


def _load_tokenizer(name: str) -> Tokenizer:
    try:
        return Tokenizer(resolve_model_path(name, need="tokenizer"))
    except ConfigError as error:
        raise ConfigError(error.message.replace("--model is", "--tokenizer is", 1)) from error


@contextlib.contextmanager
def _stop_signal() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C, or a request to end, sets in place of an exception."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _allow_many_connections() -> None:
    """As many as the system lets this process have: each request under way has one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse what they themselves name as the most.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
