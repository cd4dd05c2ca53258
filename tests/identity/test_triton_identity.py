"""Every operation in Triton, decodes captured: the tokens of the CPU's code."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pagemesh.config import ModelConfig, SchedulerConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.kernels.dispatch import using
from pagemesh.kernels.target import Target, playing
from pagemesh.models.loader import load_model
from tests.identity.checkpoints import VOCAB_SIZE, Recipe, make_checkpoint
from tests.identity.runner_driver import Driver
from tests.support.device_machine import DeviceMachine
from tests.support.host_accelerator import HostAccelerator

pytestmark = pytest.mark.costly

# A few multiprocessors, so that the interpreter has few programs to run, but some that share a row.
SMALL_GPU = Target(90, 4, 232_448)
TINY = Recipe(
    "LlamaConfig",
    {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
)


# Its table of tokens, which is the head too, stays packed.
TIED = replace(TINY, settings=TINY.settings | {"tie_word_embeddings": True})


@pytest.mark.parametrize(
    ("recipe", "quantization"), [(TINY, None), (TIED, "int4")], ids=["dense", "packed"]
)
def test_all_of_triton_gives_the_tokens_of_the_cpu(
    tmp_path: Path, recipe: Recipe, quantization: str | None
) -> None:
    make_checkpoint(tmp_path, recipe)
    prompts = [random.Random(9).choices(range(VOCAB_SIZE), k=length) for length in (5, 18, 2)]
    config = ModelConfig(str(tmp_path), quantization=quantization)
    expected = Driver(CpuRunner(load_model(config), 16, 8), 12).generate(prompts, 3)
    assert len({tuple(token_ids) for token_ids in expected}) == 3
    with using("cuda"), playing(SMALL_GPU):
        machine = DeviceMachine(HostAccelerator(), chunk_sizes=(16,))
        runner, _ = machine(load_model(config), SchedulerConfig(4, 16), 16, 8)
        assert Driver(runner, 12).generate(prompts, 3) == expected
