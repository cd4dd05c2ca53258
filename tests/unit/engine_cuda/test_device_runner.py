from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.config import ModelConfig
from pagemesh.engine.runner import ModelRunner
from pagemesh.engine.step import Runner, compute_step
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, ScheduledSequence
from tests.unit.engine_cuda.device_runners import make_device_runner
from tests.unit.models.model_folder import write_model

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=2.0, seed=7)
PROMPTS = ((1, 5, 2, 9, 4, 4, 0, 8), (3,), (7, 7, 6, 2, 1))
BLOCKS = ((3, 1, 2), (8,), (0, 5))


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load_model(ModelConfig(str(write_model(tmp_path))))


def prefills() -> Batch:
    return Batch(
        [
            ScheduledSequence(name, prompt, 0, blocks, params)
            for name, prompt, blocks, params in zip(
                "abc", PROMPTS, BLOCKS, (GREEDY, None, SAMPLED), strict=True
            )
        ]
    )


def decodes(a: int, c: int) -> Batch:
    return Batch(
        [
            ScheduledSequence("a", (a,), 8, BLOCKS[0], SAMPLED),
            ScheduledSequence("c", (c,), 5, BLOCKS[2], GREEDY),
        ]
    )


def two_steps(runner: Runner) -> list[list[int]]:
    first = list(compute_step(runner, prefills()).token_ids)
    return [first, list(compute_step(runner, decodes(*first)).token_ids)]


def test_tokens_are_those_of_the_cpus_runner(model: LoadedModel) -> None:
    expected = two_steps(ModelRunner(model, block_size=4, num_blocks=16))
    assert two_steps(make_device_runner(model).runner) == expected


def test_a_rehearsal_leaves_nothing_behind(model: LoadedModel) -> None:
    made = make_device_runner(model)
    made.runner.rehearse(prefills())
    assert not made.kv.bytes.any()
