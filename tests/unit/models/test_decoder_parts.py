from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pagemesh.kernels.linear import make_linear
from pagemesh.models.activations import make_activation
from pagemesh.models.assembly import assemble
from pagemesh.models.decoder import Decoder
from pagemesh.models.heads import NormAndRotate
from pagemesh.models.norms import LayerNorm, RmsNorm
from pagemesh.models.rope import rotate
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
    RopeSpec,
)
from pagemesh.models.vocabulary import make_embedding, make_head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_is_rounded_once(dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(3, 7).to(dtype), torch.rand(7)
    wide = hidden.float()
    expected = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 0.1) * weight
    normed = RmsNorm(weight, 0.1).apply(hidden)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    assert normed.dtype == dtype
    torch.testing.assert_close(normed.float(), expected, rtol=tolerance, atol=1e-6)


def test_layer_norm_takes_the_mean_away() -> None:
    hidden = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    norm = LayerNorm(torch.tensor([1.0, 2.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 5.0, 0.0]), 0.5)
    # Mean 3, variance 3.5: divided by 2.
    assert norm.apply(hidden).tolist() == [[-1.0, -1.0, 5.0, 1.5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_are_normed_each_with_its_own_weight_and_then_turned(dtype: torch.dtype) -> None:
    heads = torch.randn(5, 3, 4).to(dtype)
    weights = torch.rand(3, 4)
    rotation = torch.polar(torch.ones(5, 1, 2), torch.randn(5, 1, 2))
    expected = RmsNorm(weights, 1e-6).apply(heads.float())
    rotate(expected, rotation)
    NormAndRotate(RmsNorm(weights, 1e-6), rope=1).apply(heads, [rotation * 0, rotation])
    assert torch.equal(heads, expected.to(dtype))


@pytest.mark.parametrize(
    ("mlp", "inputs", "expected"),
    [
        (MlpSpec(1, "silu"), [2.0, 3.0], 2 / (1 + math.exp(-2)) * 3),
        (MlpSpec(1, "gelu_tanh"), [2.0, 3.0], 1.954598 * 3),
        (MlpSpec(1, "gelu"), [2.0, 3.0], 1.954500 * 3),
        (MlpSpec(1, "gelu", gated=False), [2.0], 1.954500),
        (MlpSpec(1, "clamped_swiglu", limit=9.0, alpha=1.5), [2.0, 3.0], 8 / (1 + math.exp(-3))),
        (MlpSpec(1, "clamped_swiglu", limit=1.0, alpha=1.5), [2.0, 3.0], 2 / (1 + math.exp(-1.5))),
        (MlpSpec(1, "clamped_swiglu", limit=1.0, alpha=1.5), [-2.0, -3.0], 0.0),
    ],
)
def test_activations(mlp: MlpSpec, inputs: list[float], expected: float) -> None:
    output = make_activation(mlp)(torch.tensor([inputs]))
    assert output.shape == (1, 1)
    assert output.item() == pytest.approx(expected, rel=1e-5)


def test_an_embedding_is_scaled_by_what_its_type_holds() -> None:
    table = torch.tensor([[1.0], [3.0]], dtype=torch.bfloat16)
    embedding = make_embedding(table, math.sqrt(3072))
    # √3072 = 55.43 is 55.5 in bfloat16; 166.5 is rounded to 166.
    assert embedding.look_up(torch.tensor([0, 1])).tolist() == [[55.5], [166.0]]
    assert table.tolist() == [[1.0], [3.0]]


def test_capped_logits_stay_below_the_cap() -> None:
    head = make_head(torch.tensor([[1.0], [100.0]]), 5.0)
    logits = head.logits(torch.tensor([[2.0]]))
    assert logits.tolist() == [[pytest.approx(5 * math.tanh(0.4)), pytest.approx(5.0)]]


class CountCalls(TorchFunctionMode):
    """Counts calls of torch, views and attributes of tensors included."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        return func(*args, **(kwargs or {}))


class RandomParameters:
    """`Parameters` of any spec."""

    def __init__(self, spec: DecoderSpec) -> None:
        self._shapes = spec.parameter_shapes()

    def read(self, name: str) -> torch.Tensor:
        return torch.randn(self._shapes[name])

    def get(self, name: str) -> torch.Tensor | None:
        return self.read(name) if name in self._shapes else None


class NoAttention:
    """`StepAttention` that makes no call itself."""

    def write(self, layer: int, keys_values: torch.Tensor) -> None:
        pass

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        return query


def make_decoder(num_layers: int) -> Decoder:
    spec = DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=5,
        hidden_size=12,
        norm=NormSpec("rms", 1e-6),
        attention=AttentionSpec(2, 1, 6, scale=1.0),
        layers=(LayerSpec(MlpSpec(8), RopeSpec(1e4, 6)),) * num_layers,
        tie_word_embeddings=False,
        max_position=8,
        longest_position=8,
    )
    return assemble(spec, RandomParameters(spec), max_model_len=8)


def count_calls(num_layers: int) -> int:
    decoder = make_decoder(num_layers)
    token_ids, positions = torch.tensor([1, 2]), torch.tensor([3, 4])
    with CountCalls() as counter:
        decoder.forward(token_ids, positions, NoAttention(), None)
    num_calls: int = counter.num_calls
    return num_calls


def test_a_llama_layer_makes_few_calls() -> None:
    """At batch size 1 on a CPU a layer takes as long as its calls do, more than its sums.

    Six in each of two norms, six for the rotation, four views of queries, keys and values, one of what
    attention gave, three for the activation; and the four projections.
    """
    assert count_calls(3) - count_calls(2) - calls_of_projections() == 26


def calls_of_projections() -> int:
    linear = make_linear(torch.randn(4, 4))
    inputs = torch.randn(2, 4)
    with CountCalls() as counter:
        linear(inputs)
        linear.add_to(inputs, inputs)
    num_calls: int = counter.num_calls
    return 2 * num_calls
