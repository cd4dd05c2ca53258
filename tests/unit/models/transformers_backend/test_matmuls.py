from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch.nn import functional

from pagemesh.config import ModelConfig
from pagemesh.kernels.dispatch import using
from pagemesh.kernels.linear.interface import PlainLinear
from pagemesh.kernels.linear.weight import Quantised
from pagemesh.kernels.target import Target, playing
from pagemesh.models.loader import load_model
from pagemesh.models.transformers_backend import model as causal_model
from pagemesh.models.transformers_backend.model import (
    BatchInvariantLinear,
    OwnWeight,
    name_of,
    names_of_read_weights,
    replace_matmuls,
)
from tests.support.late_imports import transformers
from tests.unit.models.transformers_backend.answers import load, quantised_llama
from tests.unit.models.transformers_backend.tiny_models import make_model

pytestmark = pytest.mark.costly


class Mixed(torch.nn.Module):
    """Linear modules of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(12, 16)
        self.plain = torch.nn.Linear(16, 20)
        make_turned: Any = transformers.pytorch_utils.Conv1D
        self.turned = make_turned(24, 20)
        self.scaled = torch.nn.Linear(24, 16)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(16, 16, bias=False)] * 2)
        self.exact = torch.nn.Linear(16, 16, dtype=torch.float64)
        self.head = torch.nn.Linear(16, 12, bias=False)
        table: Any = self.embedding.weight
        self.head.register_parameter("weight", table)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.turned(self.plain(self.embedding(token_ids)))
        hidden = functional.linear(hidden, self.scaled.weight * 0.5, self.scaled.bias)
        for expert in self.experts:
            hidden = expert(hidden)
        hidden = self.exact(hidden.double()).float()
        logits: torch.Tensor = self.head(hidden)
        return logits


@pytest.fixture
def mixed() -> Mixed:
    torch.manual_seed(2)
    return Mixed()


def own_weights(module: torch.nn.Module) -> list[str]:
    return sorted(name for name, _ in module.named_parameters())


def test_linear_modules_are_replaced_unless_their_weights_are_read(mixed: Mixed) -> None:
    token_ids = torch.tensor([[3, 7, 11], [0, 2, 5]])
    expected = mixed(token_ids)
    replace_matmuls(mixed)
    torch.testing.assert_close(mixed(token_ids), expected, atol=1e-5, rtol=1e-5)
    assert [
        name for name, module in mixed.named_children() if isinstance(module, BatchInvariantLinear)
    ] == [
        "plain",
        "turned",
        "head",
    ]
    assert own_weights(mixed) == [
        "embedding.weight",
        "exact.bias",
        "exact.weight",
        "scaled.bias",
        "scaled.weight",
    ]


def test_a_module_in_two_places_stays_one(mixed: Mixed) -> None:
    replace_matmuls(mixed)
    assert isinstance(mixed.experts[0], BatchInvariantLinear)
    assert mixed.experts[0] is mixed.experts[1]


def test_replaced_weights_take_no_memory(mixed: Mixed) -> None:
    weight = weakref.ref(mixed.get_parameter("plain.weight"))
    replace_matmuls(mixed)
    assert weight() is None


def test_products_keep_their_sizes_but_nobody_reads_their_weight(mixed: Mixed) -> None:
    replace_matmuls(mixed)
    plain: Any = mixed.plain
    turned: Any = mixed.turned
    assert (plain.in_features, plain.out_features) == (16, 20)
    assert (turned.nx, turned.nf) == (20, 24)
    with pytest.raises(AttributeError, match="weight"):
        getattr(plain, "weight")  # noqa: B009 - reading it by name would leave the module alone


class Router(torch.nn.Module):
    """With a weight of its own, as transformers has them."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 96).to(torch.bfloat16))
        self.bias = torch.nn.Parameter(torch.randn(8)) if bias else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        assert hidden.to(self.weight.dtype).dtype == torch.bfloat16
        assert hidden.to(self.weight).dtype == torch.bfloat16
        weight = self.weight.type(torch.float32)
        if self.bias is None:
            return functional.linear(hidden, weight)
        return functional.linear(hidden, weight, self.bias)


@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_a_modules_own_are_multiplied_by_ours(bias: bool) -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(Router(bias=bias))
    inputs = torch.randn(100, 96)
    expected = model(inputs)
    replace_matmuls(model)
    together = model(inputs)
    torch.testing.assert_close(together, expected, atol=1e-5, rtol=1e-5)
    for row in range(100):
        assert torch.equal(model(inputs[row : row + 1])[0], together[row])
    weight: Any = model[0].weight
    assert isinstance(weight, OwnWeight)
    assert type(weight * 2) is torch.Tensor
    assert len(weight._matmuls) == 1


def test_weights_that_two_modules_have_stay_theirs() -> None:
    model = torch.nn.Sequential(Router(bias=False), Router(bias=False))
    first, second = model
    second.register_parameter("weight", first.get_parameter("weight"))
    replace_matmuls(model)
    assert first.weight is second.weight
    assert isinstance(first.weight, torch.nn.Parameter)


@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16), (0, 16), (2, 0, 16)], ids=str)
def test_rows_may_have_any_leading_dimensions(shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    linear = torch.nn.Linear(16, 24)
    inputs = torch.randn(shape)
    expected = linear(inputs)
    model = torch.nn.Sequential(linear)
    replace_matmuls(model)
    torch.testing.assert_close(model(inputs), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "inputs", [torch.zeros(3, 32), torch.zeros(3, 16, dtype=torch.bfloat16)], ids=["size", "type"]
)
def test_inputs_that_do_not_fit_are_refused(inputs: torch.Tensor) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 24))
    replace_matmuls(model)
    with pytest.raises(ValueError, match=r"do not fit a weight of 16 inputs in torch\.float32"):
        model(inputs)


def test_names_of_modules() -> None:
    assert [name_of(path) for path in ("model.layers.3.mlp", "experts.2", "")] == [
        "mlp",
        "experts",
        "",
    ]


def test_weights_that_are_only_filled_at_first_are_not_read() -> None:
    assert "c_proj" not in names_of_read_weights(make_model("GPT2Config"))


def test_a_model_that_our_products_do_not_suit_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model("GPTNeoXConfig").save_pretrained(tmp_path)

    def spoil(model: torch.nn.Module, packed: Mapping[str, Quantised]) -> None:
        replace_matmuls(model, packed)
        head: Any = model.get_submodule("embed_out")
        head._multiply = PlainLinear(torch.zeros(61, 32), None)

    monkeypatch.setattr(causal_model, "replace_matmuls", spoil)
    with capture_logs() as logs:
        decoder: Any = load_model(ModelConfig(str(tmp_path))).decoder
    assert not any(isinstance(module, BatchInvariantLinear) for module in decoder._model.modules())
    assert [(entry["event"], entry["model"]) for entry in logs] == [
        ("torch's matmuls", "GPTNeoXForCausalLM")
    ]


@pytest.mark.parametrize("name", ["GPT2Config", "GPTNeoXConfig"])
def test_products_of_a_loaded_model_are_ours(name: str, tmp_path: Path) -> None:
    make_model(name).save_pretrained(tmp_path)
    with capture_logs() as logs:
        decoder: Any = load_model(ModelConfig(str(tmp_path))).decoder
    kinds = {type(module) for module in decoder._model.modules()}
    assert not logs
    assert BatchInvariantLinear in kinds
    assert not kinds & {torch.nn.Linear, transformers.pytorch_utils.Conv1D}


def test_on_a_gpu_products_are_tritons(tmp_path: Path) -> None:
    make_model("GPTNeoXConfig").save_pretrained(tmp_path)
    with using("cuda"), playing(Target(90, 4, 232_448)), capture_logs() as logs:
        decoder: Any = load_model(ModelConfig(str(tmp_path))).decoder
    found = [
        module for module in decoder._model.modules() if isinstance(module, BatchInvariantLinear)
    ]
    assert not logs
    assert {type(module._multiply).__name__ for module in found} == {"CudaLinear"}


@pytest.mark.parametrize("name", ["W8A16", "compressed FP8"])
def test_on_a_gpu_codes_are_multiplied_by_tritons_kernels(tmp_path: Path, name: str) -> None:
    folder = quantised_llama(tmp_path, name)
    with using("cuda"), playing(Target(90, 4, 232_448)), capture_logs() as logs:
        model = load(folder, dtype="bfloat16")
    assert [(entry["event"], entry["left_dense"]) for entry in logs] == [
        ("weights are quantised", [])
    ]
    module = model.decoder._model.get_submodule("model.layers.1.mlp.up_proj")
    assert type(module._multiply).__name__ == "CudaLinear"
