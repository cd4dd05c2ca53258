"""Real models on the CPU: what is told of a layer while later ones are computed is there to be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pagemesh.config import ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.runner import LayerProgress
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.models.transformers_backend.model import TransformersModel
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, ScheduledSequence
from tests.support.kv_bytes import read_kv
from tests.unit.models.transformers_backend.tiny_models import make_model

PROMPT = tuple((7 * i) % 31 + 5 for i in range(42))
EXPORTED, OTHER = (3, 1, 2), (0, 5)


@pytest.fixture(params=["pagemesh", "transformers"])
def model(request: pytest.FixtureRequest, demo_model: Path, tmp_path: Path) -> LoadedModel:
    if request.param == "pagemesh":
        return load_model(ModelConfig(str(demo_model)))
    make_model("GPT2Config", eos_token_id=7).save_pretrained(tmp_path)
    model = load_model(ModelConfig(str(tmp_path)))
    assert isinstance(model.decoder, TransformersModel)
    return model


def make_batch() -> Batch:
    """A prompt that is exported, beside one that is not."""
    sampling = SamplingParams(temperature=0.0)
    return Batch(
        [
            ScheduledSequence("a", PROMPT, 0, EXPORTED, sampling),
            ScheduledSequence("b", PROMPT[:20], 0, OTHER, sampling),
        ]
    )


def test_told_layers_are_written_and_later_ones_are_not_yet(model: LoadedModel) -> None:
    runner = CpuRunner(model, block_size=16, num_blocks=8)
    num_layers = model.shape.num_layers
    read: dict[int, bytes] = {}
    behind: dict[int, bytes] = {}

    def tell(num_layers_told: int) -> None:
        rest = num_layers - num_layers_told
        read[num_layers_told] = read_kv(runner.kv, EXPORTED, 0, num_layers_told)
        behind[num_layers_told] = read_kv(runner.kv, EXPORTED, num_layers_told, rest)

    watched = frozenset({1, num_layers - 1})
    runner.launch(make_batch(), LayerProgress(watched, tell))
    assert set(read) == watched
    for number in watched:
        assert read[number] == read_kv(runner.kv, EXPORTED, 0, number)
        assert not any(behind[number])
    # Each token of the prompt has keys and values of its own in the first layer.
    layout = runner.kv.layout
    keys = np.frombuffer(read[1], np.float32).reshape(2, 48, -1)[0]
    assert keys.shape[1] == layout.group.num_kv_heads * layout.group.head_dim
    assert len({row.tobytes() for row in keys[:42]}) == 42
    assert not keys[42:].any()


def test_a_watched_batch_gives_the_same_tokens_and_kv(model: LoadedModel) -> None:
    results = []
    for watch in (None, LayerProgress(frozenset(range(1, 6)), lambda num_layers: None)):
        runner = CpuRunner(model, block_size=16, num_blocks=8)
        step = runner.launch(make_batch(), watch)
        step.sample()
        results.append((step.result().token_ids, runner.kv.bytes.tobytes()))
    assert results[0] == results[1]
