"""From config.json to the spec: what each architecture reads, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pagemesh.errors import ConfigError
from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.falcon import alibi_slopes
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec, LayerSpec, MlpSpec, MoeSpec, RopeSpec

BASE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
SLIDE, FULL = "sliding_attention", "full_attention"


def find(config: ConfigJson) -> Architecture:
    architecture = find_architecture(config)
    assert architecture is not None
    return architecture


def make_spec(name: str, **changes: Any) -> DecoderSpec:
    """A change to `...` takes the key away."""
    values = {"architectures": [name], **BASE, **changes}
    config = ConfigJson({k: v for k, v in values.items() if v is not ...}, "config.json")
    return find(config).make_spec(config)


def approximately(value: float) -> Any:
    return pytest.approx(value)


def windows(name: str, **changes: Any) -> list[int | None]:
    return [layer.sliding_window for layer in make_spec(name, **changes).layers]


def mlp_kinds(name: str, **changes: Any) -> list[str]:
    layers = make_spec(name, **changes).layers
    return ["sparse" if isinstance(layer.mlp, MoeSpec) else "dense" for layer in layers]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("LlamaForCausalLM", {}, [None] * 4),
        ("MistralForCausalLM", {}, [4096] * 4),
        ("MistralForCausalLM", {"sliding_window": None}, [None] * 4),
        ("MixtralForCausalLM", {}, [None] * 4),
        ("MixtralForCausalLM", {"sliding_window": 9}, [9] * 4),
        ("Phi3ForCausalLM", {"sliding_window": 9}, [9] * 4),
        ("Qwen2ForCausalLM", {"sliding_window": 9}, [None] * 4),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3},
            [None, None, None, 9],
        ),
        (
            "Qwen3ForCausalLM",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
            [9] * 4,
        ),
        (
            "Qwen3ForCausalLM",
            {"use_sliding_window": True, "layer_types": [FULL, SLIDE, SLIDE, FULL]},
            [None, 4096, 4096, None],
        ),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "sliding_window": None}, [None] * 4),
        (
            "Qwen2MoeForCausalLM",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
            [9, None, None, None],
        ),
        ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 9}, [9] * 4),
        ("Gemma2ForCausalLM", {"sliding_window": 9}, [9, None, 9, None]),
        ("Gemma2ForCausalLM", {"layer_types": [FULL, FULL, SLIDE, FULL]}, [None, None, 4096, None]),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 3}, [4096, 4096, None, 4096]),
        ("GptOssForCausalLM", {"rope_scaling": {"type": "default"}}, [128, None, 128, None]),
        ("FalconForCausalLM", {}, [None] * 4),
    ],
)
def test_windows(name: str, changes: dict[str, Any], expected: list[int | None]) -> None:
    assert windows(name, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["sparse"] * 4),
        ({"decoder_sparse_step": 2}, ["dense", "sparse", "dense", "sparse"]),
        ({"mlp_only_layers": [1, 2]}, ["sparse", "dense", "dense", "sparse"]),
    ],
)
@pytest.mark.parametrize("name", ["Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"])
def test_sparse_layers_of_qwen(name: str, changes: dict[str, Any], expected: list[str]) -> None:
    assert mlp_kinds(name, **changes) == expected


def test_mixtures() -> None:
    qwen2 = make_spec("Qwen2MoeForCausalLM", moe_intermediate_size=12).layers[0].mlp
    assert qwen2 == MoeSpec(60, 4, MlpSpec(12), normalize=False, shared=MlpSpec(5632))
    qwen3 = make_spec("Qwen3MoeForCausalLM", num_experts=16, norm_topk_prob=True).layers[0].mlp
    assert qwen3 == MoeSpec(16, 8, MlpSpec(768), normalize=True)
    mixtral = make_spec("MixtralForCausalLM", num_local_experts=4)
    assert mixtral.layers[0].mlp == MoeSpec(4, 2, MlpSpec(40), normalize=True)
    gpt_oss = make_spec("GptOssForCausalLM", rope_scaling={"type": "default"}).layers[0].mlp
    expert = MlpSpec(40, "clamped_swiglu", bias=True, limit=7.0, alpha=1.702)
    assert gpt_oss == MoeSpec(128, 4, expert, normalize=True, router_bias=True)


def test_weights_of_a_token_count_only_the_experts_that_it_uses() -> None:
    spec = make_spec("MixtralForCausalLM", num_local_experts=4)
    attention = 64 * (8 + 2 * 2) * 8 + 64 * 64
    assert spec.num_active_weights(0) == 2 * 64 + attention + 4 * 64 + 2 * 3 * 40 * 64


@pytest.mark.parametrize(
    ("name", "biases"),
    [
        ("LlamaForCausalLM", (False, False)),
        ("Qwen2ForCausalLM", (True, False)),
        ("Qwen2MoeForCausalLM", (True, False)),
        ("Qwen3ForCausalLM", (False, False)),
        ("FalconForCausalLM", (False, False)),
    ],
)
def test_biases_of_attention(name: str, biases: tuple[bool, bool]) -> None:
    attention = make_spec(name).attention
    assert (attention.qkv_bias, attention.o_bias) == biases


def test_gemmas_have_a_scale_soft_caps_and_large_embeddings() -> None:
    gemma2 = make_spec("Gemma2ForCausalLM", query_pre_attn_scalar=16)
    assert gemma2.attention.scale == 0.25
    assert (gemma2.attention.soft_cap, gemma2.logit_soft_cap) == (50.0, 30.0)
    assert gemma2.embedding_scale == 8.0
    assert gemma2.tie_word_embeddings
    bare = make_spec("Gemma2ForCausalLM", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (bare.attention.soft_cap, bare.logit_soft_cap) == (None, None)
    gemma3 = make_spec("Gemma3ForCausalLM")
    assert (gemma3.attention.soft_cap, gemma3.logit_soft_cap) == (None, None)
    assert gemma3.attention.head_norm


LOCAL, GLOBAL = RopeSpec(1e4, 8), RopeSpec(1e6, 8)


@pytest.mark.parametrize(
    ("changes", "local", "everywhere"),
    [
        ({}, LOCAL, GLOBAL),
        ({"rope_theta": 5e5, "rope_local_base_freq": 7.0}, RopeSpec(7.0, 8), RopeSpec(5e5, 8)),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            LOCAL,
            RopeSpec(1e6, 8, "linear", 8.0),
        ),
        (
            {
                "rope_parameters": {
                    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                    SLIDE: {"rope_type": "default", "rope_theta": 7.0},
                }
            },
            RopeSpec(7.0, 8),
            RopeSpec(5e5, 8, "linear", 8.0),
        ),
    ],
    ids=["defaults", "old", "old scaling", "new"],
)
def test_gemma_3_has_a_rope_for_each_type_of_layer(
    changes: dict[str, Any], local: RopeSpec, everywhere: RopeSpec
) -> None:
    layers = make_spec("Gemma3ForCausalLM", sliding_window_pattern=2, **changes).layers
    assert [layer.rope for layer in layers] == [local, everywhere] * 2


def test_the_text_part_of_a_checkpoint_with_images() -> None:
    text = BASE | {"num_hidden_layers": 1}
    config = ConfigJson(
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}, "config.json"
    )
    architecture = find(config)
    spec = architecture.make_spec(config)
    assert spec.num_layers == 1
    for first in ("model.language_model.", "language_model.model."):
        tensors = [f"{first}embed_tokens.weight"]
        names = {source.tensor for source in architecture.named_sources(spec, tensors)}
        assert f"{first}layers.0.self_attn.q_norm.weight" in names
        assert all(name.startswith(first) for name in names)
    assert architecture.may_ignore("vision_tower.layer.weight", spec)
    assert not architecture.may_ignore("model.language_model.extra", spec)


@pytest.mark.parametrize(
    ("changes", "num_kv_heads", "residual"),
    [
        ({}, 1, "parallel"),
        ({"multi_query": False}, 8, "parallel"),
        ({"parallel_attn": False}, 1, "sequential"),
        ({"new_decoder_architecture": True, "num_kv_heads": 4}, 4, "parallel_two_norms"),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 8, "parallel"),
    ],
)
def test_variants_of_falcon(changes: dict[str, Any], num_kv_heads: int, residual: str) -> None:
    spec = make_spec("FalconForCausalLM", **changes)
    assert spec.attention.num_kv_heads == num_kv_heads
    assert spec.residual == residual
    assert spec.layers == (LayerSpec(MlpSpec(256, "gelu"), RopeSpec(1e4, 8)),) * 4


def test_falcon_with_alibi_has_slopes_and_no_rope() -> None:
    spec = make_spec("FalconForCausalLM", alibi=True)
    # 2^-1 to 2^-8, divided by √head_dim like the scores that they are added to.
    expected = [2.0**-power / math.sqrt(8) for power in range(1, 9)]
    assert spec.attention.alibi_slopes == pytest.approx(expected)
    assert spec.layers[0].rope is None


def test_slopes_for_another_number_of_heads_than_a_power_of_two() -> None:
    assert alibi_slopes(6) == pytest.approx((0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125))


def test_yarn_may_be_asked_for_more_than_the_models_own_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}
    spec = make_spec("Qwen3ForCausalLM", rope_scaling=yarn)
    assert (spec.max_position, spec.longest_position) == (128, 400)
    # 0.1 · ln 4 + 1.
    assert spec.layers[0].rope == RopeSpec(
        1e4, 8, "yarn", 4.0, 100, attention_factor=approximately(1.138629)
    )


def test_dynamic_scaling_may_be_asked_for_more_than_the_models_own_context() -> None:
    spec = make_spec("LlamaForCausalLM", rope_scaling={"type": "dynamic", "factor": 2.5})
    assert (spec.max_position, spec.longest_position) == (128, 320)
    assert spec.layers[0].rope == RopeSpec(1e4, 8, "dynamic", 2.5, 128)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "rope_scaling": {"type": "su", "short_factor": [1, 2, 3], "long_factor": [4, 5, 6]},
            "partial_rotary_factor": 0.75,
        },
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "short_factor": [1, 2, 3],
                "long_factor": [4, 5, 6],
            }
        },
    ],
    ids=["old", "new"],
)
def test_longrope_of_a_part_of_each_head(changes: dict[str, Any]) -> None:
    changes |= {"original_max_position_embeddings": 16}
    expected = RopeSpec(
        1e4,
        6,
        "longrope",
        original_max_position=16,
        short_factors=(1.0, 2.0, 3.0),
        long_factors=(4.0, 5.0, 6.0),
        # √(1 + ln(128 / 16) / ln 16).
        attention_factor=approximately(math.sqrt(1.75)),
    )
    assert make_spec("Phi3ForCausalLM", **changes).layers[0].rope == expected


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("MistralForCausalLM", {"sliding_window": -1}, "sliding_window = -1, but it must be an int"),
        ("MistralForCausalLM", {"hidden_act": "relu"}, "hidden_act = 'relu', but it must be"),
        ("Qwen2ForCausalLM", {"layer_types": [FULL]}, "it must be a list of 4 times"),
        ("Qwen3ForCausalLM", {"layer_types": ["linear_attention"] * 4}, "it must be a list of 4"),
        ("Qwen3ForCausalLM", {"head_dim": 7}, "head_dim = 7, but it must be even"),
        ("Qwen2MoeForCausalLM", {"mlp_only_layers": ["a"]}, "mlp_only_layers = ['a'], but it"),
        ("Qwen3MoeForCausalLM", {"num_experts": 4}, "num_experts_per_tok = None, but it must be at most num_experts = 4"),
        ("Gemma2ForCausalLM", {"hidden_activation": "gelu"}, "hidden_activation = 'gelu', but"),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "= True, but it must be false"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "= 50.0, but it must be null"),
        ("Gemma3ForConditionalGeneration", {}, "text_config = None, but it must be a JSON object"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "linear"}}, "type = 'linear', but it must be"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.9}, "partial_rotary_factor = 0.9, but it must be such that an even number"),
        ("Qwen2ForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5, but it must be 1.0"),
        ("FalconForCausalLM", {"activation": "relu"}, "activation = 'relu', but it must be"),
        ("FalconForCausalLM", {"hidden_size": 72}, "hidden_size = 72, but it must be a multiple of"),
        ("FalconForCausalLM", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn = False, but it must be true"),
        ("FalconForCausalLM", {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads = 2, but"),
        ("FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 3}, "num_kv_heads = 3, but it must be a divisor"),
        ("FalconForCausalLM", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2, but"),
        ("GptOssForCausalLM", {}, "rope_parameters = None, but it must be given"),
        ("MixtralForCausalLM", {"num_local_experts": 0}, "num_local_experts = 0, but it must be a pos"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_run_is_named(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_spec(name, **changes)
    assert message in caught.value.message


NAMES = (
    "FalconForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_fill_every_parameter_without_gap_or_overlap(name: str) -> None:
    changes = {"rope_scaling": {"type": "default"}, "tie_word_embeddings": False}
    values = {"architectures": [name], "text_config": BASE | changes, **BASE, **changes}
    config = ConfigJson(values, "config.json")
    architecture = find(config)
    spec = architecture.make_spec(config)
    filled = {key: torch.zeros(shape) for key, shape in spec.parameter_shapes().items()}
    for source in architecture.sources(spec):
        tensor = torch.zeros(source.shape)
        converted = tensor if source.convert is None else source.convert(tensor)
        assert converted.shape == filled[source.parameter][source.place].shape
        filled[source.parameter][source.place] += 1
    assert all((parameter == 1).all() for parameter in filled.values())
