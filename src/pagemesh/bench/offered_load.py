"""Requests made of prompts, sent to the endpoint, and stopped by Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvloop

from pagemesh.bench.client import Client
from pagemesh.bench.datasets import Sample
from pagemesh.bench.load import Load, Run, run_load
from pagemesh.bench.progress import Progress
from pagemesh.bench.settings import BenchServeConfig


def send_all(
    config: BenchServeConfig,
    model: str,
    samples: Sequence[Sample],
    due_times: Sequence[float],
    title: str,
) -> Run:
    """Send each sample when it is due, in seconds from now, and show how far it is."""
    return uvloop.run(_send_all(config, model, samples, due_times, title))


async def _send_all(
    config: BenchServeConfig,
    model: str,
    samples: Sequence[Sample],
    due_times: Sequence[float],
    title: str,
) -> Run:
    ignores_eos = config.endpoint.ignore_eos or config.dataset.dataset_name == "random"
    is_shown = not config.results.disable_tqdm
    async with Client(config.endpoint) as client:
        bodies = [client.body(sample, model, ignores_eos=ignores_eos) for sample in samples]
        limit, timeout = config.traffic.max_concurrency, config.endpoint.request_timeout
        load = Load(bodies, due_times, limit, timeout)
        with _stop_signal() as stop:
            async with Progress(len(samples), title, is_shown=is_shown) as progress:
                return await run_load(client.send, load, stop, progress)


@contextmanager
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
