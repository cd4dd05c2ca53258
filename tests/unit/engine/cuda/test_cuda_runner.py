"""The runner of device tensors, over a CPU that makes every missing wait visible."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from pagemesh.config import ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.cuda.runner import MOST_UNTOLD
from pagemesh.engine.runner import LayerProgress, PendingStep, Runner, compute_step
from pagemesh.kernels.dispatch import using
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import (
    UNKNOWN_TOKEN,
    Batch,
    PromptTargets,
    ScheduledSequence,
    StepResult,
)
from tests.unit.engine.cuda.device_runners import Made, make_device_runner
from tests.unit.models.model_folder import break_token, write_model

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=2.0, seed=7)
PROMPTS = {"a": (1, 5, 2, 9, 4, 4, 0, 8), "b": (3,), "c": (7, 7, 6, 2, 1)}
BLOCKS = {"a": (3, 1, 2, 6), "b": (8, 10), "c": (0, 5, 7)}
SAMPLING = {"a": SAMPLED, "b": GREEDY, "c": GREEDY}
NUM_DECODES = 4


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load_model(ModelConfig(str(write_model(tmp_path))))


def prefill(*names: str) -> Batch:
    return Batch(
        [ScheduledSequence(n, PROMPTS[n], 0, BLOCKS[n], SAMPLING[n]) for n in names or PROMPTS]
    )


def decode(index: int, names: str, token_ids: dict[str, int]) -> Batch:
    """The decodes after `index` others; of whom no token is given, it is at the same place in the batch
    before."""
    return Batch(
        [
            ScheduledSequence(
                name,
                (token_ids.get(name, UNKNOWN_TOKEN),),
                len(PROMPTS[name]) + index,
                BLOCKS[name],
                SAMPLING[name],
                previous_row=None if name in token_ids else row,
            )
            for row, name in enumerate(names)
        ]
    )


def generate(runner: Runner) -> list[list[int]]:
    """Each step's tokens, where the host knows all of them."""
    steps = [list(compute_step(runner, prefill()).token_ids)]
    for index in range(NUM_DECODES):
        known = dict(zip("abc", steps[-1], strict=True))
        steps.append(list(compute_step(runner, decode(index, "abc", known)).token_ids))
    return steps


def generate_overlapped(runner: Runner) -> list[list[int]]:
    """The same, each step launched before the one in front of it is read."""
    results: list[StepResult] = []
    earlier: PendingStep = runner.launch(prefill())
    earlier.sample()
    for index in range(NUM_DECODES):
        later = runner.launch(decode(index, "abc", {}))
        results.append(earlier.result())
        later.sample()
        earlier = later
    results.append(earlier.result())
    return [list(result.token_ids) for result in results]


@pytest.fixture
def expected(model: LoadedModel) -> list[list[int]]:
    steps = generate(CpuRunner(model, block_size=4, num_blocks=16))
    assert len({tuple(step) for step in steps}) > 2
    return steps


@pytest.fixture(params=["eager", "graphs"])
def made(request: pytest.FixtureRequest, model: LoadedModel) -> Made:
    made = make_device_runner(model)
    if request.param == "graphs":
        made.runner.capture()
    return made


def test_tokens_are_those_of_the_cpus_runner(made: Made, expected: list[list[int]]) -> None:
    assert generate(made.runner) == expected


def test_the_kv_is_that_of_the_cpus_runner(made: Made, model: LoadedModel) -> None:
    # The CPU's own turns of keys round otherwise than the definition, which the other runner has.
    with using("reference", "write_kv"):
        cpu = CpuRunner(model, block_size=4, num_blocks=16)
    generate(cpu)
    num_trials = made.accelerator.num_replays
    generate(made.runner)
    # 14 tokens of prompts are padded to 16, three decodes to four rows, which write nothing more.
    assert made.accelerator.num_replays == num_trials + (1 + NUM_DECODES if num_trials else 0)
    assert np.array_equal(made.kv.bytes, cpu.kv.bytes)


def test_a_step_takes_the_tokens_of_the_one_before_from_the_device(
    made: Made, expected: list[list[int]]
) -> None:
    assert generate_overlapped(made.runner) == expected


def test_known_and_unknown_tokens_mix(made: Made, expected: list[list[int]]) -> None:
    runner = made.runner
    compute_step(runner, prefill("a", "b"))
    first = runner.launch(prefill("c"))
    first.sample()
    # Of "c" the token is unknown, which was the only one of its batch.
    known = dict(zip("ab", expected[0], strict=False))
    batch = decode(0, "cab", known)
    assert compute_step(runner, batch).token_ids == [expected[1][i] for i in (2, 0, 1)]
    assert first.result().token_ids == [expected[0][2]]


def test_a_step_waits_for_its_tokens_alone(made: Made) -> None:
    runner, accelerator = made.runner, made.accelerator
    before = accelerator.num_waits
    first = runner.launch(prefill())
    first.sample()
    second = runner.launch(decode(0, "abc", {}))
    assert accelerator.num_waits == before
    first.result()
    second.sample()
    second.result()
    assert accelerator.num_waits == before + 2


def test_a_batch_may_change_when_it_is_launched(made: Made, expected: list[list[int]]) -> None:
    runner = made.runner
    compute_step(runner, prefill())
    known = dict(zip("abc", expected[0], strict=True))
    tables = {name: list(blocks) for name, blocks in BLOCKS.items()}
    batch = Batch(
        [s._replace(block_ids=tables[s.request_id]) for s in decode(0, "abc", known).sequences]
    )
    step = runner.launch(batch)
    for table in tables.values():
        table[:] = [15] * len(table)
    step.sample()
    assert step.result().token_ids == expected[1]


def test_a_dummy_run_leaves_nothing_behind(made: Made, expected: list[list[int]]) -> None:
    made.runner.dummy_run(prefill())
    assert not made.kv.bytes.any()
    assert generate(made.runner) == expected


def test_a_failing_row_fails_alone(tmp_path: Path) -> None:
    model = load_model(ModelConfig(str(write_model(tmp_path))))
    break_token(model, 3)
    made = make_device_runner(model)
    made.runner.capture()
    result = compute_step(made.runner, prefill())
    assert set(result.errors) == {"b"}
    known = dict(zip("abc", result.token_ids, strict=True))
    later = compute_step(made.runner, decode(0, "abc", known))
    healthy = CpuRunner(load_model(ModelConfig(str(tmp_path))), block_size=4, num_blocks=16)
    expected = generate(healthy)
    assert [later.token_ids[i] for i in (0, 2)] == [expected[1][i] for i in (0, 2)]


def test_a_chunk_whose_kv_is_broken_is_known_before_its_prompt_is_at_its_end(
    model: LoadedModel, made: Made
) -> None:
    break_token(model, 3)
    runner = made.runner
    broken = ScheduledSequence("broken", [1, 3, 1], 0, BLOCKS["a"], None)
    sound = ScheduledSequence("sound", [1, 5, 1], 0, BLOCKS["c"], None)
    result = compute_step(runner, Batch([sound, broken]))
    assert {name: error.reason for name, error in result.errors.items()} == {
        "broken": "KV_NOT_FINITE"
    }


def test_prompts_are_scored_and_states_pooled_as_on_the_cpu(model: LoadedModel, made: Made) -> None:
    scored = ScheduledSequence(
        "a", PROMPTS["a"], 0, BLOCKS["a"], GREEDY, prompt_targets=PromptTargets(2, (9, 4, 4), 3)
    )
    pooled = ScheduledSequence("c", PROMPTS["c"], 0, BLOCKS["c"], None, pooled=range(1, 4))
    runners: list[Runner] = [CpuRunner(model, 4, 16), made.runner]
    mine, theirs = (compute_step(runner, Batch([scored, pooled])) for runner in runners)
    for one, other in zip(mine.prompt_logprobs["a"], theirs.prompt_logprobs["a"], strict=True):
        assert (one.token_id, one.rank, one.top_token_ids) == (
            other.token_id,
            other.rank,
            other.top_token_ids,
        )
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
    assert [score.token_id for score in theirs.prompt_logprobs["a"]] == [9, 4, 4]
    assert np.array_equal(mine.pooled_states["c"], theirs.pooled_states["c"])
    assert mine.pooled_states["c"].shape[0] == 3


@pytest.mark.parametrize("most", [sum(map(len, PROMPTS.values())) - 1, MOST_UNTOLD])
def test_a_long_step_whose_layers_are_watched_is_not_computed_in_a_graph(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, most: int, expected: list[list[int]]
) -> None:
    monkeypatch.setattr("pagemesh.engine.cuda.runner.MOST_UNTOLD", most)
    made = make_device_runner(model)
    made.runner.capture()
    before = made.accelerator.num_replays
    told = threading.Event()
    step = made.runner.launch(prefill(), LayerProgress(frozenset({1}), lambda _: told.set()))
    step.sample()
    assert step.result().token_ids == expected[0]
    is_short = most == MOST_UNTOLD
    assert made.accelerator.num_replays == before + is_short
    assert told.wait(0.2 if is_short else 10.0) is not is_short


def test_steps_of_more_tokens_than_were_captured_run_eagerly(
    model: LoadedModel, expected: list[list[int]]
) -> None:
    made = make_device_runner(model, max_num_batched_tokens=13)
    made.runner.capture()
    before = made.accelerator.num_replays
    assert list(compute_step(made.runner, prefill()).token_ids) == expected[0]
    assert made.accelerator.num_replays == before
    assert list(compute_step(made.runner, prefill("a", "c")).token_ids) == expected[0][::2]
    assert made.accelerator.num_replays == before + 1
