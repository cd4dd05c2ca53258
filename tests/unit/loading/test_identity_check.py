"""What the check at load finds, and what is loaded then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from pagemesh.config import HardwareConfig, ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.errors import ConfigError
from pagemesh.kernels.jit.cpu_isa import current_isa, processor_isas, using_isa
from pagemesh.loading.identical import check_on_device, check_on_host, load_identical
from pagemesh.loading.parts import EngineParts
from pagemesh.models.interface import CausalModel
from pagemesh.models.loader import LoadedModel, load_model
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.identity.encoder_checkpoints import RECIPES as ENCODERS
from tests.identity.encoder_checkpoints import make_encoder
from tests.support.host_accelerator import HostAccelerator

STRICT = HardwareConfig(require_identical_tokens=True)


class Drifting:
    """A `CausalModel` whose numbers follow how many tokens or rows there are."""

    def __init__(
        self,
        model: CausalModel,
        of_tokens: Callable[[int], float] = lambda count: 0.0,
        of_rows: Callable[[int], float] = lambda count: 0.0,
    ) -> None:
        self._model = model
        self._of_tokens = of_tokens
        self._of_rows = of_rows

    def forward(self, token_ids: torch.Tensor, *inputs: Any) -> torch.Tensor:
        return self._model.forward(token_ids, *inputs) + self._of_tokens(len(token_ids))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden) + self._of_rows(len(hidden))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with using_isa(current_isa()):
        yield


@pytest.fixture(scope="module")
def model(demo_model: Path) -> LoadedModel:
    return load_model(ModelConfig(str(demo_model)))


def drifting(model: LoadedModel, **drifts: Callable[[int], float]) -> LoadedModel:
    return dataclasses.replace(model, decoder=Drifting(model.decoder, **drifts))


def test_models_that_keep_their_bits_pass(model: LoadedModel, tmp_path: Path) -> None:
    assert check_on_host(model) is None
    for name in ("Mixtral", "Gemma 3"):
        make_checkpoint(tmp_path / name, RECIPES[name])
        assert (
            check_on_host(load_model(ModelConfig(str(tmp_path / name), dtype="bfloat16"))) is None
        )
    name, recipe = next(iter(ENCODERS.items()))
    make_encoder(tmp_path / name, recipe)
    assert check_on_host(load_model(ModelConfig(str(tmp_path / name)))) is None


def test_a_context_shorter_than_the_prompts_is_looked_at_all_the_same(demo_model: Path) -> None:
    assert check_on_host(load_model(ModelConfig(str(demo_model), max_model_len=5))) is None


def test_the_engine_has_all_threads_afterwards(demo_model: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_on_host(load_model(ModelConfig(str(demo_model))))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_of_a_large_model_the_first_layers_are_looked_at(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = dataclasses.replace(model.shape, num_layer_weights=1 << 27)
    assert check_on_host(dataclasses.replace(model, shape=shape)) is None


def test_what_follows_the_batch_is_named(model: LoadedModel) -> None:
    found = check_on_host(drifting(model, of_tokens=lambda count: 1e-5 if count == 37 else 0.0))
    assert found == "the hidden states of a prompt alone differ from those in a batch"
    # The second step in pieces is of three tokens.
    found = check_on_host(drifting(model, of_tokens=lambda count: 1e-5 if count == 3 else 0.0))
    assert found is not None
    assert found.startswith("the hidden states of a prompt in chunks and decodes differ")
    found = check_on_host(drifting(model, of_rows=lambda count: 1e-3 if count == 1 else 0.0))
    assert found == "the logits of 1 tokens differ from those in a batch"


def test_the_next_class_that_keeps_bits_is_taken_and_said_loudly(demo_model: Path) -> None:
    first, second, *_ = processor_isas()
    differences = iter(["the sky differs", None])
    with using_isa(first), capture_logs() as lines:
        loaded = load_identical(
            ModelConfig(str(demo_model)), HardwareConfig(), check=lambda model: next(differences)
        )
        assert current_isa() == second
    assert loaded.trouble == (
        f"that kernels for {first} do not keep bits on this processor: the sky differs"
    )
    assert [line["log_level"] for line in lines if "cpu_isa" in line and "differ" in str(line)] == [
        "error"
    ]


def test_where_no_class_keeps_bits_the_last_one_computes(demo_model: Path) -> None:
    loaded = load_identical(
        ModelConfig(str(demo_model)), HardwareConfig(), check=lambda model: "the sky differs"
    )
    assert loaded.trouble.endswith("nor do those of any other class")


def test_identical_tokens_can_be_required(demo_model: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^--require-identical-tokens is set, but the check .* the sky differs$"
    ):
        load_identical(ModelConfig(str(demo_model)), STRICT, check=lambda model: "the sky differs")


def test_a_gpu_is_looked_at_as_well(model: LoadedModel) -> None:
    def check(model: LoadedModel, *, required: bool) -> str:
        runner = CpuRunner(model, 16, num_blocks=10)
        built = EngineParts(
            runner, runner.kv, 10, 0, 0.0, works_beside_host=True, release=lambda: None
        )
        return check_on_device(model, runner.kv.layout, built, HostAccelerator(), required=required)

    assert check(model, required=True) == ""
    broken = drifting(model, of_rows=lambda count: 1e-3 if count == 1 else 0.0)
    assert check(broken, required=False).startswith("that kernels do not keep bits on this GPU: ")
    with pytest.raises(ConfigError, match=r"--require-identical-tokens is set, but .* on this GPU"):
        check(broken, required=True)
