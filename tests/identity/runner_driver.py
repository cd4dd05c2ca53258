"""Drives a runner by hand: batches of chunks and decodes over shuffled block tables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.cuda.runner import DeviceKv
from pagemesh.engine.runner import Runner, compute_step
from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, PromptTargets, ScheduledSequence

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Running:
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    num_computed: int = 0
    output: list[int] = field(init=False, default_factory=list)


class StoringRunner(Runner, Protocol):
    """A runner whose KV can be asked for its size."""

    @property
    def kv(self) -> DeviceKv: ...


class Driver:
    """Generates for some prompts at once; every sequence gets a chunk or a decode in every step."""

    def __init__(self, runner: StoringRunner, chunk_size: int, seed: int = 1) -> None:
        self._runner = runner
        self._chunk_size = chunk_size
        self._free = list(range(runner.kv.num_blocks))
        random.Random(seed).shuffle(self._free)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        sampling: Sequence[SamplingParams] | None = None,
    ) -> list[list[int]]:
        """The generated ids of each prompt."""
        running = [
            Running(str(index), list(prompt), len(prompt), [], params)
            for index, (prompt, params) in enumerate(
                zip(prompts, sampling or [GREEDY] * len(prompts), strict=True)
            )
        ]
        while unfinished := [each for each in running if len(each.output) < num_tokens]:
            # Decodes first, as the scheduler does.
            unfinished.sort(key=lambda each: not each.output)
            scheduled = [self._schedule(each) for each in unfinished]
            drawn = iter(compute_step(self._runner, Batch(scheduled)).token_ids)
            for each, sequence in zip(unfinished, scheduled, strict=True):
                each.num_computed += len(sequence.token_ids)
                if sequence.sampling is not None:
                    each.output.append(next(drawn))
                    each.token_ids.append(each.output[-1])
            assert next(drawn, None) is None
        for each in running:
            self._free += each.block_ids
        return [each.output for each in running]

    def _schedule(self, each: Running) -> ScheduledSequence:
        end = min(each.num_computed + self._chunk_size, len(each.token_ids))
        block_size = self._runner.kv.layout.block_size
        while len(each.block_ids) * block_size < end:
            each.block_ids.append(self._free.pop())
        return ScheduledSequence(
            request_id=each.request_id,
            token_ids=each.token_ids[each.num_computed : end],
            start=each.num_computed,
            block_ids=each.block_ids,
            sampling=each.sampling if end == len(each.token_ids) else None,
        )


def logprobs_of(model: LoadedModel, prompt: list[int]) -> list[float]:
    """Of each of the prompt's tokens but the first, computed in one piece."""
    targets = PromptTargets(0, prompt[1:], 0)
    sequence = ScheduledSequence("r", prompt, 0, range(20), None, prompt_targets=targets)
    result = compute_step(CpuRunner(model, block_size=16, num_blocks=20), Batch([sequence]))
    return [score.logprob for score in result.prompt_logprobs["r"]]
