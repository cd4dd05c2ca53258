"""Logits are the same bits however a sequence is computed: equal tokens are no matter of luck."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.kernels.jit.cpu_isa import CpuIsa, using_isa
from pagemesh.models.interface import CausalModel
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.models.parameters import HOST, ModelTarget
from pagemesh.sampling.plan import SampledRow
from pagemesh.sampling.sampler import PendingSamples, Sampler
from tests.identity.checkpoints import RECIPES, VOCAB_SIZE, make_checkpoint
from tests.identity.runner_driver import Driver
from tests.identity.transformers_recipes import TRANSFORMERS_RECIPES
from tests.support.cpu_isas import isas
from tests.support.quantised_checkpoints import FORMATS, quantise

NUM_TOKENS = 6
PROMPT_LENGTH = 45
WHOLE = 1000
# torch computes activations in vectors, and what is left over at the end of all rows by other functions.
WHOLE_VECTORS = {
    "hidden_size": 96,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "word_embed_proj_dim": 96,
    "n_routed_experts": 32,
    "moe_intermediate_size": 32,
}


class Recorder:
    """A `CausalModel` that keeps the logits that it gave."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self.steps: list[torch.Tensor] = []

    def forward(self, *inputs: Any) -> torch.Tensor:
        return self._model.forward(*inputs)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._model.logits(hidden)
        self.steps.append(logits.clone())
        return logits


class ChangingCores(SharedCores):
    """One core and three by turns, at every layer."""

    def __init__(self) -> None:
        self.num_cores = 3
        self.num_looks = 0

    def take(self, num_threads: int) -> int:
        return min(num_threads, 3)

    def adjust(self) -> int:
        self.num_looks += 1
        return 1 + 2 * (self.num_looks % 2)

    def rest(self) -> None:
        """They are nobody else's."""


@pytest.fixture(scope="module", params=["demo", *RECIPES])
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model: Path
) -> Path:
    if request.param == "demo":
        return demo_model
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, RECIPES[request.param])
    return folder


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(num_threads)


def logits_of(
    model: LoadedModel,
    prompts: list[list[int]],
    chunk_size: int,
    block_size: int = 16,
    cores: SharedCores | None = None,
) -> torch.Tensor:
    """Logits of all sampled tokens: [tokens, prompts, vocab]."""
    recorder = Recorder(model.decoder)
    recording = dataclasses.replace(model, decoder=recorder)
    runner = CpuRunner(recording, block_size, num_blocks=60, cores=cores)
    Driver(runner, chunk_size).generate(prompts, NUM_TOKENS)
    return torch.stack(recorder.steps)


def logits_as_served(
    model: LoadedModel, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> torch.Tensor:
    """Of whole prompts; decodes are recorded and run again, where the model's can be."""
    steps = []
    launch = Sampler.launch

    def keep_and_launch(
        sampler: Sampler, logits: torch.Tensor, rows: Sequence[SampledRow]
    ) -> PendingSamples:
        steps.append(logits.clone())
        return launch(sampler, logits, rows)

    monkeypatch.setattr(Sampler, "launch", keep_and_launch)
    Driver(CpuRunner(model, block_size=16, num_blocks=60), WHOLE).generate(prompts, NUM_TOKENS)
    monkeypatch.undo()
    return torch.stack(steps)


def check_bits(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, in chunks, alone, in a batch, in other blocks, recorded, and with other threads in every layer."""
    draw = random.Random(8)
    prompts = [draw.choices(range(VOCAB_SIZE), k=PROMPT_LENGTH) for _ in range(3)]
    expected = logits_of(model, prompts, WHOLE)
    assert torch.equal(logits_as_served(model, prompts, monkeypatch), expected)
    for chunk_size in (1, 7, 16):
        assert torch.equal(logits_of(model, prompts, chunk_size), expected)
    assert torch.equal(logits_of(model, prompts, WHOLE, block_size=9), expected)
    cores = ChangingCores()
    assert torch.equal(logits_of(model, prompts, WHOLE, cores=cores), expected)
    assert cores.num_looks == NUM_TOKENS * model.shape.num_layers
    torch.set_num_threads(2)
    for index, prompt in enumerate(prompts):
        alone = logits_of(model, [prompt], WHOLE)
        assert torch.equal(alone, expected[:, index : index + 1])


# On an Intel with AMX.
@pytest.mark.product(found_bugs=["Llama GQA-bfloat16", "Falcon 7B-bfloat16"], most=10)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_the_same_bits_on_every_path(
    folder: Path, dtype: Literal["float32", "bfloat16"], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bits(load_model(ModelConfig(str(folder), dtype=dtype)), monkeypatch)


@pytest.mark.product(most=2)
@pytest.mark.parametrize("name", ["Llama MQA", "Mixtral"])
@isas
def test_logits_are_the_same_bits_on_every_class_of_processors(
    isa: CpuIsa, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, RECIPES[name])
    with using_isa(isa):
        check_bits(load_model(ModelConfig(str(tmp_path), dtype="bfloat16")), monkeypatch)


@pytest.mark.product(most=3)
@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@isas
def test_logits_over_kv_of_8_bits_are_the_same_bits(
    isa: CpuIsa,
    dtype: Literal["float32", "bfloat16"],
    kv_cache_dtype: Literal["fp8", "int8"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Windows, caps and heads that fill no vector.
    make_checkpoint(tmp_path, RECIPES["Gemma 2"])
    with using_isa(isa):
        config = ModelConfig(str(tmp_path), dtype=dtype)
        check_bits(load_model(config, ModelTarget(HOST, kv_cache_dtype)), monkeypatch)


@pytest.mark.product(most=2)
@pytest.mark.parametrize("name", ["Llama MQA", "Mixtral"])
@pytest.mark.parametrize("form", ["W8A8", "W8A8, static"])
@isas
def test_logits_of_rows_of_whole_numbers_are_the_same_bits(
    isa: CpuIsa, form: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row of activations has a scale of its own, or that of the checkpoint, whatever is computed beside it."""
    make_checkpoint(tmp_path / "shapes", RECIPES[name])
    quantise(tmp_path / "shapes", tmp_path, tmp_path / "floats", FORMATS[form])
    with using_isa(isa):
        check_bits(load_model(ModelConfig(str(tmp_path), dtype="bfloat16")), monkeypatch)


@pytest.mark.product(most=2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["OPT", "GPT-NeoX", "Cohere 2", "DeepSeek V3", "Granite MoE"])
def test_logits_of_models_that_transformers_runs_are_the_same_bits(
    name: str,
    dtype: Literal["float32", "bfloat16"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = TRANSFORMERS_RECIPES[name]
    make_checkpoint(tmp_path, dataclasses.replace(recipe, settings=recipe.settings | WHOLE_VECTORS))
    check_bits(load_model(ModelConfig(str(tmp_path), dtype=dtype)), monkeypatch)
