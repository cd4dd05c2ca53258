"""Whole decodes on a CPU: recorded, and with every kernel called by itself.

Bytes: the weights of all layers and of the head, each once. Flops: two for every pair of a row and a weight.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import torch
from contest import Contest
from random_models import SHAPES, make_model

from pagemesh.config import ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.paged_model import PagedModel, paged_sequences
from pagemesh.engine.step_inputs import StepInputs, make_step_inputs
from pagemesh.models.loader import load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import ScheduledSequence

ITEM = 2
BLOCK_SIZE = 16
CONTEXT = 200
MODELS = ("10M", "160M", "1B")


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Few sequences, with some hundred tokens of context each."""
    if device.type != "cpu":
        return
    for name in MODELS[:2] if quick else MODELS:
        model = load_model(ModelConfig(str(make_model(name)), dtype="bfloat16"))
        shape = SHAPES[name]
        num_weights = model.shape.num_layers * model.shape.num_layer_weights
        num_weights += shape.vocab_size * shape.hidden_size
        for number in (1, 8) if quick else (1, 4, 16, 64):
            num_blocks = number * (CONTEXT // BLOCK_SIZE + 1)
            runner = CpuRunner(model, BLOCK_SIZE, num_blocks)
            inputs = _inputs(number, num_blocks, model.vocab_size)
            columns = torch.from_numpy(inputs.columns)
            yield Contest(
                f"decode of {name}, {number} sequences",
                num_weights * ITEM,
                2.0 * num_weights * number,
                {
                    "ours": partial(runner._decodes.run, inputs),
                    "kernel by kernel": partial(_by_kernels, runner._model, inputs, columns),
                },
                aim=0.85 if name == "160M" and number == 1 else None,
            )


def _inputs(number: int, num_blocks: int, vocab_size: int) -> StepInputs:
    draw = random.Random(1)
    block_ids = draw.sample(range(num_blocks), num_blocks)
    per_sequence = num_blocks // number
    return make_step_inputs(
        [
            ScheduledSequence(
                str(index),
                [draw.randrange(vocab_size)],
                CONTEXT,
                block_ids[index * per_sequence : (index + 1) * per_sequence],
                SamplingParams(temperature=0.0),
            )
            for index in range(number)
        ],
        BLOCK_SIZE,
    )


def _by_kernels(model: PagedModel, inputs: StepInputs, columns: torch.Tensor) -> torch.Tensor:
    token_ids, positions, slots = columns
    plan = model.attention.plan(paged_sequences(inputs.sequences))
    return model.logits(model.forward(token_ids, positions, slots, plan, None))
