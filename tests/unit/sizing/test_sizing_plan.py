"""The sums of a plan, against real checkpoints and by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pagemesh.config import ModelConfig
from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.loader import load_model
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec
from pagemesh.sizing.plan import (
    GIB,
    Hardware,
    MemoryPlan,
    StepLimits,
    activation_bytes,
    kv_layout,
    make_plan,
    num_kv_blocks,
    num_parameters,
    num_step_tokens,
    size_text,
    table_bytes,
    weight_bytes,
)
from tests.identity import encoder_checkpoints
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.unit.models.model_folder import write_model


def read_config(folder: Path) -> tuple[Architecture, DecoderSpec]:
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    return architecture, architecture.make_spec(settings)


@pytest.mark.product(most=10)
@pytest.mark.parametrize("name", RECIPES)
def test_weights_and_kv_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, RECIPES[name])
    architecture, spec = read_config(tmp_path)
    with Checkpoint.open(tmp_path) as checkpoint:
        entries = checkpoint.entries
    # Without what is not run, such as an image encoder.
    tensors = {source.tensor for source in architecture.named_sources(spec, entries.keys())}
    size = sum(entries[tensor].end - entries[tensor].begin for tensor in tensors)
    assert weight_bytes(spec, "float32") == size
    assert weight_bytes(spec, "bfloat16") == 2 * num_parameters(spec) == size // 2
    model = load_model(ModelConfig(str(tmp_path), max_model_len=RECIPES[name].max_model_len))
    assert kv_layout(spec, "float32", 16) == model.block_layout(16)


@pytest.mark.parametrize("name", encoder_checkpoints.RECIPES)
def test_weights_and_kv_are_those_of_the_encoder(name: str, tmp_path: Path) -> None:
    encoder_checkpoints.make_encoder(tmp_path, encoder_checkpoints.RECIPES[name])
    architecture, spec = read_config(tmp_path)
    with Checkpoint.open(tmp_path) as checkpoint:
        entries = checkpoint.entries
    tensors = {source.tensor for source in architecture.named_sources(spec, entries.keys())}
    size = sum(entries[tensor].end - entries[tensor].begin for tensor in tensors)
    assert weight_bytes(spec, "float32") == size
    model = load_model(ModelConfig(str(tmp_path)))
    assert kv_layout(spec, "float32", 16) == model.block_layout(16)
    # No output that is packed; ModernBERT has two RoPEs of heads of 12.
    tables = 2 * 100 * 12 * 4 if "ModernBERT" in name else 0
    assert table_bytes(spec, "float32", 100, Hardware("cpu", GIB)) == tables


def test_an_encoder_takes_the_kv_and_the_activations_of_a_step(tmp_path: Path) -> None:
    encoder_checkpoints.make_encoder(tmp_path, encoder_checkpoints.RECIPES["BERT"])
    _, spec = read_config(tmp_path)
    limits = StepLimits(num_step_tokens(64, 100, causal=False), 4, 100)
    assert limits.num_tokens == 100
    # Residual and its sum; queries, keys, values and what attention gives.
    assert activation_bytes(spec, "float32", limits) == 100 * 4 * (2 * 72 + 4 * 72)
    plan = make_plan(spec, "float32", 16, limits, Hardware("cpu", GIB))
    assert (plan.num_blocks, plan.max_concurrency) == (10, 1)
    assert plan.cache_bytes == 10 * 16 * 2 * 72 * 4
    assert make_plan(spec, "float32", 16, limits, Hardware("cpu", GIB // 10)).max_concurrency == 0


@pytest.fixture
def spec(tmp_path: Path) -> DecoderSpec:
    """Llama: hidden 64, 2 layers, 8 heads of 8, 2 KV heads, MLP of 96, vocabulary of 100, untied."""
    write_model(
        tmp_path,
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=96,
    )
    return read_config(tmp_path)[1]


def test_devices_share_projections_and_repeat_norms_and_scarce_heads(spec: DecoderSpec) -> None:
    embeddings = 2 * 100 * 64
    norms = 5 * 64
    layer = 64 * 64 + 64 * 64 + 3 * 64 * 96
    key_value = 2 * 16 * 64
    assert weight_bytes(spec, "float32") == 4 * (embeddings + norms + 2 * (layer + key_value))
    half = 4 * (embeddings // 2 + norms + (layer + key_value))
    assert weight_bytes(spec, "float32", 2) == half
    # Each of four devices has two query heads, and one of the two KV heads.
    quarter = 4 * (embeddings // 4 + norms + 2 * (layer // 4 + key_value // 2))
    assert weight_bytes(spec, "float32", 4) == quarter


def test_fewer_kv_heads_than_devices_are_repeated(spec: DecoderSpec) -> None:
    shape = {"num_layers": 2, "head_dim": 8, "dtype": "float16"}
    assert kv_layout(spec, "float16", 16) == KvLayout.uniform(16, num_kv_heads=2, **shape)  # type: ignore[arg-type]
    assert kv_layout(spec, "float16", 16, 2).group.num_kv_heads == 1
    assert kv_layout(spec, "float16", 16, 8).group.num_kv_heads == 1


def test_heads_that_cannot_be_shared_are_refused(spec: DecoderSpec) -> None:
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size is 3, but must divide .* 8 att"):
        make_plan(spec, "float32", 16, StepLimits(1, 1, 1), Hardware("cpu", GIB, 3))


def test_activations_are_those_of_the_widest_place(spec: DecoderSpec) -> None:
    # 50 tokens: residual and normed, then gate, up, product, output.
    assert activation_bytes(spec, "bfloat16", StepLimits(50, 1, 10)) == 50 * 2 * (
        2 * 64 + 3 * 96 + 64
    )
    # 50 sampled tokens of one: the logits with their copies.
    assert activation_bytes(spec, "bfloat16", StepLimits(50, 50, 10)) == 50 * (64 * 2 + 100 * 30)


def test_queries_keys_and_values_may_be_the_widest_place(tmp_path: Path) -> None:
    write_model(
        tmp_path, intermediate_size=2, num_attention_heads=8, num_key_value_heads=2, head_dim=16
    )
    _, spec = read_config(tmp_path)
    query, key_value = 8 * 16, 2 * 2 * 16
    assert activation_bytes(spec, "float32", StepLimits(50, 1, 10)) == 50 * 4 * (
        2 * spec.hidden_size + 2 * query + key_value
    )


def test_tables_are_factors_of_positions_and_a_packed_copy_of_a_tied_output(
    spec: DecoderSpec,
) -> None:
    # One RoPE for heads of 8.
    cpu, cuda = Hardware("cpu", GIB), Hardware("cuda", GIB)
    assert table_bytes(spec, "bfloat16", 1000, cpu) == 1000 * 8 * 4
    tied = dataclasses.replace(spec, tie_word_embeddings=True)
    assert table_bytes(tied, "bfloat16", 1000, cpu) == 1000 * 8 * 4 + 100 * 64 * 2
    assert table_bytes(tied, "bfloat16", 1000, cuda) == 1000 * 8 * 4


def test_a_model_without_a_head_has_no_logits_and_no_packed_output(spec: DecoderSpec) -> None:
    headless = dataclasses.replace(spec, tie_word_embeddings=True, has_head=False)
    assert weight_bytes(spec, "float32") - weight_bytes(headless, "float32") == 100 * 64 * 4
    assert table_bytes(headless, "float32", 1000, Hardware("cpu", GIB)) == 1000 * 8 * 4
    # 50 requests of one token: in a layer the widest place, behind them states in two types.
    assert activation_bytes(headless, "bfloat16", StepLimits(50, 50, 10)) == 50 * 2 * (
        2 * 64 + 3 * 96 + 64
    )


def make_memory_plan(usable: int, max_model_len: int = 100) -> MemoryPlan:
    """1,000 bytes of weights, 200 of runtime, 100 of tables, 200 of activations, blocks of 16 tokens and 512 bytes."""
    layout = KvLayout.uniform(16, num_layers=1, num_kv_heads=1, head_dim=4, dtype="float32")
    assert layout.num_bytes == 512
    return MemoryPlan(usable, 1000, 200, 100, 200, layout, max_model_len)


def test_what_is_left_becomes_blocks() -> None:
    plan = make_memory_plan(1500 + 20 * 512 + 511)
    assert (plan.num_blocks, plan.num_tokens, plan.kv_bytes_per_token) == (20, 320, 32)
    # Each request of 100 tokens takes 7 blocks.
    assert plan.max_concurrency == 2


def test_a_model_that_does_not_fit_has_no_blocks() -> None:
    plan = make_memory_plan(1400)
    assert (plan.kv_bytes, plan.num_blocks, plan.max_concurrency) == (-100, 0, 0)


def test_number_of_blocks_for_a_memory_size() -> None:
    layout = KvLayout.uniform(16, 6, 4, 32, "float32")
    assert layout.num_bytes == 98304
    assert num_kv_blocks(layout, 0.25) == 2730
    with pytest.raises(ConfigError, match="--kv-cache-memory is 1e-06 GiB, but one block"):
        num_kv_blocks(layout, 1e-6)


def test_sizes_for_people() -> None:
    assert [size_text(s) for s in (2**20, GIB // 8, 3 * GIB)] == ["1.0 MiB", "0.12 GiB", "3.00 GiB"]
