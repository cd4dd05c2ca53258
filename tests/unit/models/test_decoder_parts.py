from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagemesh.kernels.linear import Dense, Weight
from pagemesh.kernels.write_kv import Turn
from pagemesh.models.assembly import assemble
from pagemesh.models.decoder import Decoder, make_embedding, make_head
from pagemesh.models.feed_forward import make_expansion
from pagemesh.models.norms import LayerNorm
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    RopeSpec,
)


def test_layer_norm_takes_the_mean_away() -> None:
    hidden = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    norm = LayerNorm(torch.tensor([1.0, 2.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 5.0, 0.0]), 0.5)
    # Mean 3, variance 3.5: divided by 2.
    assert norm(hidden).tolist() == [[-1.0, -1.0, 5.0, 1.5]]


@pytest.mark.parametrize(
    ("mlp", "inputs", "expected"),
    [
        (MlpSpec(1, "silu"), [2.0, 3.0], 2 / (1 + math.exp(-2)) * 3),
        (MlpSpec(1, "gelu_tanh"), [2.0, 3.0], 1.954598 * 3),
        (MlpSpec(1, "gelu"), [2.0], 1.954500),
        (MlpSpec(1, "geglu"), [2.0, 3.0], 1.954500 * 3),
        (MlpSpec(1, "geglu"), [-2.0, 3.0], -0.045500 * 3),
        (MlpSpec(1, "clamped_swiglu", limit=9.0, alpha=1.5), [2.0, 3.0], 8 / (1 + math.exp(-3))),
        (MlpSpec(1, "clamped_swiglu", limit=1.0, alpha=1.5), [2.0, 3.0], 2 / (1 + math.exp(-1.5))),
        (MlpSpec(1, "clamped_swiglu", limit=1.0, alpha=1.5), [-2.0, -3.0], 0.0),
    ],
)
def test_activations(mlp: MlpSpec, inputs: list[float], expected: float) -> None:
    output = make_expansion(mlp, Dense(torch.eye(len(inputs))), None)(torch.tensor([inputs]))
    assert output.shape == (1, 1)
    assert output.item() == pytest.approx(expected, rel=1e-5)


def test_an_embedding_is_scaled_by_what_its_type_holds() -> None:
    table = torch.tensor([[1.0], [3.0]], dtype=torch.bfloat16)
    embedding = make_embedding(Dense(table), math.sqrt(3072))
    # √3072 = 55.43 is 55.5 in bfloat16; 166.5 is rounded to 166.
    token_ids, positions = torch.tensor([0, 1]), torch.tensor([4, 5])
    assert embedding.look_up(token_ids, positions).tolist() == [[55.5], [166.0]]
    assert table.tolist() == [[1.0], [3.0]]


def test_capped_logits_stay_below_the_cap() -> None:
    head = make_head(Dense(torch.tensor([[1.0], [100.0]])), 5.0)
    logits = head.logits(torch.tensor([[2.0]]))
    assert logits.tolist() == [[pytest.approx(5 * math.tanh(0.4)), pytest.approx(5.0)]]


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of torch's operations, views included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class RandomParameters:
    """`Parameters` of any spec."""

    device = torch.device("cpu")

    def __init__(self, spec: DecoderSpec) -> None:
        self._shapes = spec.parameter_shapes()
        self.weights: list[str] = []
        """Names of those that were read as weights."""

    def read(self, name: str) -> torch.Tensor:
        return torch.randn(self._shapes[name])

    def get(self, name: str) -> torch.Tensor | None:
        return self.read(name) if name in self._shapes else None

    def weight(self, name: str) -> Weight:
        self.weights.append(name)
        return Dense(self.read(name))


class NoAttention:
    """`ForwardContext` that makes no call itself."""

    def write(self, layer: int, heads: torch.Tensor, turn: Turn | None) -> None:
        pass

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        return query


MLP = MlpSpec(8)


def make_spec(num_layers: int, mlp: MlpSpec | MoeSpec = MLP, *, ties: bool = False) -> DecoderSpec:
    return DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=5,
        hidden_size=12,
        norm=NormSpec("rms", 1e-6),
        attention=AttentionSpec(2, 1, 6, scale=1.0),
        layers=(LayerSpec(mlp, RopeSpec(1e4, 6)),) * num_layers,
        tie_word_embeddings=ties,
        max_position=8,
        longest_position=8,
    )


def make_decoder(num_layers: int) -> Decoder:
    spec = make_spec(num_layers)
    return assemble(spec, RandomParameters(spec), max_model_len=8)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (make_spec(1), ["qkv", "o", "up", "down"]),
        (
            make_spec(1, MoeSpec(3, 2, MlpSpec(8), normalize=True, shared=MlpSpec(6)), ties=True),
            [
                "qkv",
                "o",
                "router",
                "experts.up",
                "experts.down",
                "shared.up",
                "shared.down",
                "shared_gate",
            ],
        ),
    ],
    ids=["dense", "mixture"],
)
def test_what_rows_are_multiplied_with_is_read_as_a_weight(
    spec: DecoderSpec, names: list[str]
) -> None:
    """So that a checkpoint may have it in any kind."""
    parameters = RandomParameters(spec)
    assemble(spec, parameters, max_model_len=8)
    head = [] if spec.tie_word_embeddings else ["lm_head"]
    assert parameters.weights == ["embed", *(f"layers.0.{name}.weight" for name in names), *head]


def operations(num_layers: int) -> Counter[str]:
    decoder = make_decoder(num_layers)
    token_ids, positions = torch.tensor([1, 2]), torch.tensor([3, 4])
    with Operations() as noted:
        decoder.forward(token_ids, positions, NoAttention(), None)
    return Counter(noted.names)


def test_a_llama_layer_takes_few_operations() -> None:
    """At batch size 1 on a CPU a layer takes as long as its calls do, more than its sums."""
    layer = operations(3) - operations(2)
    # Four projections and as many views of what they gave, two outputs of vector code, and two views of
    # queries, keys and values.
    assert sum(layer.values()) <= 12
