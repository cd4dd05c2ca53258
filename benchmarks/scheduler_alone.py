"""The scheduler without a model: what it costs in time, and how many KV slots it leaves unused.

Neither depends on the tokens, so every sampled token is the same one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from workload import Request

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvLayout
from pagemesh.core.request import EngineRequest
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
_VOCAB_SIZE = 100_000
_TOKEN = 1


def step_times_ms(num_requests: int, num_steps: int) -> list[float]:
    """Time of steps, without computing, that decode one token of each of so many requests."""
    config = SchedulerConfig(max_num_seqs=num_requests, max_num_batched_tokens=num_requests)
    scheduler = _scheduler(config, num_blocks=num_requests * 64)
    length = num_requests + num_steps
    for number in range(num_requests):
        # One token each: all join in the first step and leave together after the last one.
        _submit(scheduler, f"r{number}", [number], length)
    taken = []
    for step in range(num_steps + 2):
        started = time.perf_counter()
        batch = scheduler.schedule()
        assert len(batch.sequences) == num_requests
        scheduler.update(batch, StepResult([_TOKEN] * num_requests))
        scheduler.take_output(scheduler.load())
        # The first steps take the requests in.
        if step >= 2:
            taken.append((time.perf_counter() - started) * 1e3)
    return taken


def wasted_slots_percent(requests: Sequence[Request], max_num_seqs: int) -> float:
    """Reserved slots that hold no token, in percent of all reserved ones, over all steps of a workload."""
    config = SchedulerConfig(max_num_seqs=max_num_seqs).on("cpu")
    scheduler = _scheduler(config, num_blocks=16_384)
    for number, request in enumerate(requests):
        _submit(scheduler, f"r{number}", request.prompt, request.num_tokens)
    reserved = used = 0
    for batch in _steps(scheduler):
        for sequence in batch.sequences:
            reserved += len(sequence.block_ids) * BLOCK_SIZE
            used += sequence.start + len(sequence.token_ids)
    return 100 * (1 - used / reserved)


def _steps(scheduler: Scheduler) -> Iterator[Batch]:
    while (batch := scheduler.schedule()).sequences:
        yield batch
        num_sampled = sum(sequence.sampling is not None for sequence in batch.sequences)
        scheduler.update(batch, StepResult([_TOKEN] * num_sampled))
        scheduler.take_output(scheduler.load())


def _scheduler(config: SchedulerConfig, num_blocks: int) -> Scheduler:
    layout = KvLayout.uniform(BLOCK_SIZE, num_layers=1, num_kv_heads=1, head_dim=1, dtype="float32")
    info = EngineInfo("benchmark", layout, num_blocks, 4096, config.max_num_seqs)
    return Scheduler(info, config, vocab_size=_VOCAB_SIZE)


def _submit(scheduler: Scheduler, request_id: str, prompt: Sequence[int], num_tokens: int) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    scheduler.requests.submit(EngineRequest(request_id, tuple(prompt), sampling))
