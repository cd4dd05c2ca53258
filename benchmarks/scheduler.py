"""How long the scheduler takes for a step, and how much work its admission saves when the cache is full.

Without a model: answers end when they have the lengths that were drawn for them. The second part counts
steps and tokens, which no machine changes, and adds them up with the costs given below.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from report import Report, arguments

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvLayout
from pagemesh.core.request import EngineRequest
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.estimates import GrowthForecast, MeanLength
from pagemesh.scheduler.request import Request
from pagemesh.scheduler.scheduler import Scheduler

QUESTION = (
    "Time of the scheduler for a step, and what its admission saves when the cache is too small"
)

LAYOUT: Final = KvLayout.uniform(
    block_size=16, num_layers=1, num_kv_heads=1, head_dim=1, dtype="float32"
)
EOS: Final = 1
WORD: Final = 7
MAX_MODEL_LEN: Final = 2048

STEP_MS: Final = 10.0
"""Of a step, whatever it computes: about what a model of 160M parameters takes on 2 cores."""

TOKEN_MS: Final = 0.4
"""For each of its tokens; a prefill of 1,024 then takes 0.4 s."""


class Unlimited:
    """A forecast that admits whatever fits at the moment."""

    def observe(self, num_tokens: int) -> None:
        """Learns nothing."""

    def num_growth_tokens(self, request: Request) -> int:
        """As if every request were at its end."""
        return 0


class Longest:
    """A forecast that expects the worst: every answer as long as it may get."""

    def observe(self, num_tokens: int) -> None:
        """Learns nothing."""

    def num_growth_tokens(self, request: Request) -> int:
        """What its max_tokens leaves."""
        return request.max_total_tokens - request.num_tokens


FORECASTS: Final[dict[str, Callable[[], GrowthForecast]]] = {
    "whatever fits": Unlimited,
    "mean of ended answers": MeanLength,
    "max_tokens": Longest,
}


@dataclass(frozen=True)
class Conversation:
    """One request of the workload."""

    num_prompt_tokens: int
    num_answer_tokens: int


@dataclass
class Work:
    """What a workload took."""

    num_steps: int = 0
    num_tokens: int = 0
    num_preemptions: int = 0
    waste: float = 0.0
    """Mean over the steps of the unused share of the owned slots."""

    @property
    def seconds(self) -> float:
        """Predicted from the costs above."""
        return (self.num_steps * STEP_MS + self.num_tokens * TOKEN_MS) / 1000


class Driver:
    """A scheduler whose answers end at their drawn lengths."""

    def __init__(self, num_blocks: int, max_num_seqs: int, forecast: GrowthForecast) -> None:
        self.num_blocks = num_blocks
        self.scheduler = Scheduler(
            EngineInfo("none", LAYOUT, num_blocks, MAX_MODEL_LEN, max_num_seqs),
            SchedulerConfig(max_num_seqs, max(512, max_num_seqs)),
            vocab_size=10_000,
            eos_token_ids=(EOS,),
            forecast=forecast,
        )
        self.lengths: dict[str, int] = {}

    def submit(self, name: str, conversation: Conversation, max_tokens: int) -> None:
        """A request whose prompt nobody else has."""
        rng = random.Random(name)
        prompt = tuple(rng.choices(range(10, 10_000), k=conversation.num_prompt_tokens))
        request = EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens))
        self.lengths[name] = conversation.num_prompt_tokens + conversation.num_answer_tokens
        self.scheduler.requests.submit(request)

    def step(self) -> Batch:
        """What the engine's loop does, without the computing."""
        batch = self.scheduler.schedule()
        self.scheduler.take_output(self.scheduler.load(), load_is_news=False)
        token_ids = [
            EOS
            if sequence.start + len(sequence.token_ids) + 1 >= self.lengths[sequence.request_id]
            else WORD
            for sequence in batch.sequences
            if sequence.sampling is not None
        ]
        self.scheduler.update(batch, StepResult(token_ids))
        self.scheduler.take_output(self.scheduler.load())
        return batch

    def run(self) -> Work:
        """Until every answer has ended."""
        work = Work()
        while batch := self.step().sequences:
            work.num_steps += 1
            work.num_tokens += sum(len(sequence.token_ids) for sequence in batch)
            load = self.scheduler.load()
            num_slots = (self.num_blocks - load.num_free_blocks) * LAYOUT.block_size
            work.waste += load.num_unused_slots / max(num_slots, 1)
            work.num_preemptions = load.num_preemptions
        work.waste /= work.num_steps
        return work


def draw(count: int, seed: int) -> list[Conversation]:
    """Lengths as in ShareGPT: lognormal, prompts of 160 and answers of 210 tokens on average."""
    rng = random.Random(seed)
    return [
        Conversation(
            min(max(4, round(rng.lognormvariate(4.5, 1.1))), 1000),
            min(max(2, round(rng.lognormvariate(5.0, 0.9))), 1000),
        )
        for _ in range(count)
    ]


def measure_admission(name: str, num_requests: int, num_blocks: int, seed: int) -> Work:
    """Run a workload that comes at once through a cache that is too small for it."""
    driver = Driver(num_blocks, 64, FORECASTS[name]())
    for index, conversation in enumerate(draw(num_requests, seed)):
        driver.submit(f"{seed}-{index}", conversation, max_tokens=1000)
    return driver.run()


def measure_steps(num_running: int, num_waiting: int, num_steps: int) -> list[float]:
    """Milliseconds of the scheduler in each of some steps of decodes, while others wait for a slot."""
    driver = Driver(num_running * 64, num_running, MeanLength())
    for index in range(num_running + num_waiting):
        driver.submit(str(index), Conversation(100, 900), max_tokens=900)
    while driver.step().num_tokens != num_running:
        pass
    samples = []
    for _ in range(num_steps):
        started_at = time.perf_counter()
        driver.step()
        samples.append((time.perf_counter() - started_at) * 1000)
    return samples


def main() -> None:
    """Measure and print."""
    quick, path = arguments("scheduler", QUESTION)
    num_steps, num_requests = (20, 60) if quick else (200, 300)
    report = Report("scheduler", QUESTION)
    report.settings = {"requests": num_requests, "step_ms": STEP_MS, "token_ms": TOKEN_MS}
    for num_running, num_waiting in ((16, 0), (64, 0), (256, 0), (64, 1000)):
        samples = measure_steps(num_running, num_waiting, num_steps)
        aim = 2.5 if num_running == 256 else None
        waiting = f", {num_waiting} waiting" if num_waiting else ""
        report.add(f"step with {num_running} decodes{waiting}", "ms", samples, aim=aim)
    seeds = (1,) if quick else (1, 2, 3)
    for num_blocks in (256, 512, 1024):
        for name in FORECASTS:
            works = [measure_admission(name, num_requests, num_blocks, seed) for seed in seeds]
            label = f"{num_blocks} blocks, {name}"
            report.add(f"{label}: all answers", "s", [work.seconds for work in works])
            report.add(f"{label}: preemptions", "", [work.num_preemptions for work in works])
            report.add(f"{label}: waste", "%", [100 * work.waste for work in works], aim=4.0)
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
