"""Decoders whose matmuls, norms, turned heads and experts are Triton's: logits are those of the CPU's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.kernels.dispatch import using
from pagemesh.models.loader import load_model
from tests.identity.checkpoints import RECIPES, VOCAB_SIZE, make_checkpoint
from tests.identity.runner_driver import Driver, logprobs_of

pytestmark = pytest.mark.costly

# Rounding in other orders moves log probabilities down to -20 by about 1e-5.
TOLERANCE = 1e-4


@pytest.mark.skipif(torch.cuda.is_available(), reason="the models lie on the CPU")
@pytest.mark.parametrize("name", ["Qwen 3", "Gemma 3", "GPT-OSS"])
def test_a_decoder_computes_the_same_with_all_kernels(name: str, tmp_path: Path) -> None:
    shallow = replace(RECIPES[name], settings=RECIPES[name].settings | {"num_hidden_layers": 2})
    make_checkpoint(tmp_path, shallow)
    config = ModelConfig(model=str(tmp_path), dtype="float32")
    prompt = torch.randint(VOCAB_SIZE, (19,)).tolist()
    model = load_model(config)
    expected = logprobs_of(model, prompt)
    [tokens] = Driver(CpuRunner(model, 16, 20), 100).generate([prompt], 2)
    with using(
        "cuda", "expert_choice", "experts", "gated_activation", "linear", "rms_norm", "write_kv"
    ):
        model = load_model(config)
        assert logprobs_of(model, prompt) == pytest.approx(expected, abs=TOLERANCE)
        assert Driver(CpuRunner(model, 16, 20), 100).generate([prompt, [1]], 2)[0] == tokens
