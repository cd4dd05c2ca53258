"""The modelled engine takes the same steps as the real scheduler, whether one by one or many at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from pagemesh.core.request import EngineRequest
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.estimates import MeanLength
from pagemesh.sim.clock import Clock
from pagemesh.sim.cores import Cores
from pagemesh.sim.engine import Engine
from pagemesh.sim.job import Job
from pagemesh.sim.model import DecodeModel, PrefillModel, WorkerModel
from pagemesh.sim.trace import Span, TraceRequest, block_names
from tests.fakes.engine import VOCAB_SIZE
from tests.unit.scheduler.builders import Stepper, make_info
from tests.unit.sim.sim_builders import make_request

BLOCK_SIZE = 4
MAX_NUM_SEQS = 6
BUDGET = 24


class Watch:
    """Owns jobs and hears of the engine; notes when jobs end."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.first: dict[int, int] = {}
        self.ends: dict[int, tuple[int, int]] = {}
        self.gaps = 0

    def on_first_token(self, job: Job) -> None:
        self.first[job.request.output_text] = round(self.clock.now)

    def on_end(self, job: Job) -> None:
        cached = job.num_cached_tokens
        assert cached is not None
        self.ends[job.request.output_text] = (round(self.clock.now), cached)

    def on_grant(self, job: Job) -> None:
        raise AssertionError("nobody waits for KV")

    def on_chunk(self, job: Job, start: int, end: int, *, is_computed: bool) -> None:
        raise AssertionError("nobody exports")

    def on_tokens(self, num_gaps: int, seconds: float) -> None:
        self.gaps += num_gaps

    def on_change(self) -> None:
        pass


def tokens_of(request: TraceRequest) -> list[int]:
    """Ids that are equal where texts are."""
    ids: list[int] = []
    for text, end in request.prompt:
        draws = random.Random(text)
        # From the text's own beginning, so that equal positions have equal ids.
        row = [draws.randrange(VOCAB_SIZE) for _ in range(end)]
        ids += row[len(ids) : end]
    return ids


def make_requests(seed: int) -> list[TraceRequest]:
    """Arrivals are numbers of steps."""
    draws = random.Random(seed)
    requests, now = [], 0
    for number in range(40):
        now += draws.choice((0, 1, 2, 9))
        prefix = Span(draws.randrange(3), 20)
        length = 20 + draws.randint(1, 30)
        requests.append(
            make_request(now, length, draws.randint(1, 100), text=10 + number, prefix=prefix)
        )
    return requests


@cache
def run_real(seed: int, num_blocks: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Step in which each ended, tokens that it had cached; and preemptions."""
    requests = make_requests(seed)
    info = make_info(num_blocks, BLOCK_SIZE, max_model_len=200, max_num_seqs=MAX_NUM_SEQS)
    stepper = Stepper(info, max_num_batched_tokens=BUDGET, forecast=MeanLength())
    waiting = list(requests)
    ends: dict[int, tuple[int, int]] = {}
    step = 0
    while len(ends) < len(requests):
        while waiting and waiting[0].arrival <= step:
            request = waiting.pop(0)
            sampling = SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True)
            name = str(request.output_text)
            stepper.submit(EngineRequest(name, tuple(tokens_of(request)), sampling))
        stepper.step()
        step += 1
        for name, (end,) in stepper.ends.items():
            ends.setdefault(int(name), (step, end.num_cached_tokens))
    return ends, stepper.scheduler.load().num_preemptions


def run_modelled(requests: Sequence[TraceRequest], num_blocks: int) -> tuple[Watch, Engine, Clock]:
    """The same with steps of a second."""
    model = WorkerModel(
        kv_tokens=num_blocks * BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=BUDGET,
        max_model_len=200,
        prefill=PrefillModel(1e-12, 0.0, 1.0),
        decode=DecodeModel(0.0, 0.0, 1.0),
    )
    clock = Clock()
    watch = Watch(clock)
    engine = Engine(clock, model, BLOCK_SIZE, watch, Cores(clock, None))

    def submit(request: TraceRequest) -> None:
        names = block_names(request, request.num_total_tokens // BLOCK_SIZE, BLOCK_SIZE)
        job = Job(
            watch, request, request.num_total_tokens, names, num_tokens=request.num_prompt_tokens
        )
        engine.tell(lambda: engine.jobs.submit(job))

    for request in requests:
        # Shortly before the step begins that they may be in, and in its own when the engine is idle.
        at = request.arrival - 0.25 if request.arrival else 0.0
        clock.at(at, lambda request=request: submit(request))  # type: ignore[misc]
    clock.run(lambda: False)
    return watch, engine, clock


@pytest.mark.product(sample=4)
@pytest.mark.parametrize("num_blocks", [40, 80])
@pytest.mark.parametrize("seed", range(4))
def test_it_takes_the_steps_that_the_real_scheduler_takes(seed: int, num_blocks: int) -> None:
    requests = make_requests(seed)
    real, num_preemptions = run_real(seed, num_blocks)
    watch, engine, _ = run_modelled(requests, num_blocks)
    assert watch.ends == real
    assert engine.num_preemptions == num_preemptions
    engine.tables.pool.check_integrity([])
    assert watch.gaps == sum(r.num_output_tokens - 1 for r in requests)


def test_the_comparison_has_hits_and_preemptions() -> None:
    outcomes = [run_real(seed, num_blocks) for seed in range(4) for num_blocks in (40, 80)]
    assert sum(cached for ends, _ in outcomes for _, cached in ends.values()) > 1000
    assert sum(num_preemptions for _, num_preemptions in outcomes) > 2


def test_equal_decodes_are_one_event() -> None:
    watch, _, clock = run_modelled([make_request(0, 10, 100, text=1)], 60)
    assert watch.ends == {1: (100, 0)}
    # Told, woken, the prompt's step, and 99 steps of decodes.
    assert clock.num_done == 4


def test_who_comes_in_a_run_of_decodes_waits_for_the_step_in_progress() -> None:
    requests = [make_request(0, 10, 100, text=1), make_request(50, 10, 2, text=2)]
    watch, _, _ = run_modelled(requests, 60)
    assert watch.first == {1: 1, 2: 51}
    assert watch.ends == {1: (100, 0), 2: (52, 0)}


def test_an_export_keeps_its_blocks_until_it_is_released() -> None:
    request = make_request(0, 10, 1, text=1)
    watch, engine, clock = run_modelled([], 60)
    chunks: list[tuple[int, int, bool]] = []
    watch.on_chunk = lambda job, start, end, *, is_computed: chunks.append(  # type: ignore[method-assign]
        (start, end, is_computed)
    )
    names = block_names(request, 2, BLOCK_SIZE)
    job = Job(watch, request, 11, names, num_tokens=10, is_export=True, is_held=True)
    engine.tell(lambda: engine.jobs.submit(job))
    clock.run(lambda: False)
    assert watch.ends == {1: (1, 0)}
    assert chunks == [(0, 10, False), (0, 10, True)]
    assert engine.tables.pool.num_free_blocks == 57
    engine.tell(lambda: engine.jobs.end(job))
    clock.run(lambda: False)
    assert engine.tables.pool.num_free_blocks == 60
