"""Decodes that were recorded give the bits of decodes that were not, and write the same KV."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine import recorded_decodes
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.paged_model import paged_sequences
from pagemesh.engine.recorded_decodes import MAX_SEQUENCES
from pagemesh.engine.runner import compute_step
from pagemesh.engine.step_inputs import StepInputs, make_step_inputs
from pagemesh.kernels.jit.parallel import noting_calls
from pagemesh.models.loader import load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, ScheduledSequence
from tests.identity.checkpoints import RECIPES, VOCAB_SIZE, make_checkpoint

BLOCK_SIZE = 16
NUM_BLOCKS = 400
RECORDED = ("Llama GQA", "Qwen 3", "Gemma 3")
"""Among them a window, norms of heads, and norms of what is added; all of pagemesh's own kernels."""
NOT_RECORDED = ("Falcon 7B", "Mixtral")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make_runner(
    name: str, folder: Path, dtype: Literal["float32", "bfloat16"] = "float32"
) -> CpuRunner:
    make_checkpoint(folder, RECIPES[name])
    runner = CpuRunner(load_model(ModelConfig(str(folder), dtype=dtype)), BLOCK_SIZE, NUM_BLOCKS)
    for layer in runner.kv.layers:
        layer.copy_(torch.randn(layer.shape))
    return runner


def decodes(draw: random.Random, number: int, longest: int) -> StepInputs:
    """So many sequences of any lengths, on blocks of any numbers."""
    block_ids = iter(draw.sample(range(NUM_BLOCKS), NUM_BLOCKS))
    sequences = []
    for index in range(number):
        start = draw.randrange(longest)
        table = [next(block_ids) for _ in range(start // BLOCK_SIZE + 1)]
        token = draw.randrange(VOCAB_SIZE)
        sequences.append(ScheduledSequence(str(index), [token], start, table, SamplingParams()))
    return make_step_inputs(sequences, BLOCK_SIZE)


def by_kernels(runner: CpuRunner, inputs: StepInputs) -> torch.Tensor:
    token_ids, positions, slots = torch.from_numpy(inputs.columns)
    plan = runner._model.attention.plan(paged_sequences(inputs.sequences))
    return runner._model.logits(runner._model.forward(token_ids, positions, slots, plan, None))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_decode_is_the_same_bits(
    name: str, dtype: Literal["float32", "bfloat16"], tmp_path: Path
) -> None:
    draw = random.Random(5)
    runner = make_runner(name, tmp_path, dtype)
    num_records = 0
    for number, longest in [(1, 20), (3, 90), (1, 90), (3, 90), (MAX_SEQUENCES, 60), (1, 30)] * 2:
        inputs = decodes(draw, number, longest)
        expected = by_kernels(runner, inputs)
        kv = [layer.clone() for layer in runner.kv.layers]
        for layer in runner.kv.layers:
            layer.view(-1, *layer.shape[3:])[inputs.columns[2]] = 0
        with noting_calls() as calls:
            logits = runner._decodes.run(inputs)
        assert torch.equal(logits, expected)
        assert all(torch.equal(one, other) for one, other in zip(kv, runner.kv.layers, strict=True))
        # One call for all kernels; beside it, those of what the layers begin with, if any.
        num_records += len(calls) > 5
    assert num_records == 3


def test_a_decode_is_cut_between_layers_where_they_have_many_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(7)
    uncut = make_runner("Llama GQA", tmp_path)
    num_layers = len(uncut.kv.layers)
    inputs = decodes(draw, 3, 60)

    def num_calls(runner: CpuRunner) -> int:
        expected = by_kernels(runner, inputs)
        runner._decodes.run(inputs)
        with noting_calls() as calls:
            logits = runner._decodes.run(inputs)
        assert torch.equal(logits, expected)
        return len(calls)

    # From the token ids on.
    assert num_calls(uncut) == 1
    for num_at_once in range(1, num_layers):
        most = num_at_once * uncut._threads._num_layer_weights
        monkeypatch.setattr(recorded_decodes, "MAX_WEIGHTS", most)
        cut = make_runner("Llama GQA", tmp_path)
        looks = Mock()
        cut._model.on_layer = looks
        num_pieces = -(-num_layers // num_at_once)
        assert num_calls(cut) == num_pieces
        # Of what was computed kernel by kernel, of what was recorded, and of what was run again.
        assert looks.call_count == 2 * num_layers + num_pieces - 1


def test_contexts_may_grow_beyond_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_decodes, "_LEAST_BLOCKS", 1)
    draw = random.Random(6)
    runner = make_runner("Llama GQA", tmp_path)
    for longest in (10, 60, 120):
        inputs = decodes(draw, 3, longest)
        logits = runner._decodes.run(inputs)
        assert torch.equal(logits, by_kernels(runner, inputs))


def test_large_decodes_and_models_that_need_other_operations_are_computed_as_ever(
    tmp_path: Path,
) -> None:
    draw = random.Random(8)
    runner = make_runner("Llama GQA", tmp_path)
    assert runner._decodes.takes(MAX_SEQUENCES) and not runner._decodes.takes(MAX_SEQUENCES + 1)
    for name in NOT_RECORDED:
        folder = tmp_path / name
        folder.mkdir()
        runner = make_runner(name, folder)
        inputs = decodes(draw, 2, 50)
        # What was to be recorded is right, whatever came of it.
        assert runner._decodes.takes(2)
        logits = runner._decodes.run(inputs)
        assert torch.equal(logits, by_kernels(runner, inputs))
        assert not runner._decodes.takes(2)


def test_the_runner_records_decodes_alone(tmp_path: Path) -> None:
    runner = make_runner("Llama GQA", tmp_path)

    def num_calls(token_ids: list[int], start: int) -> int:
        sequence = ScheduledSequence("r", token_ids, start, (3, 1, 2), SamplingParams())
        with noting_calls() as calls:
            compute_step(runner, Batch([sequence]))
        return len(calls)

    prompt = num_calls([1, 2, 3, 4], 0)
    recorded = num_calls([5], 4)
    assert prompt <= recorded
    assert num_calls([6], 5) < 5 < prompt == num_calls([1, 2, 3, 4], 0)
