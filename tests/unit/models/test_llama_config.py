from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.llama import is_redundant, make_spec, tensor_name
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec, RopeSpec
from tests.unit.models.model_folder import CONFIG, SHAPES


def config(**changes: Any) -> ConfigJson:
    values = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    return ConfigJson(values, "config.json")


def test_defaults_are_those_of_transformers() -> None:
    assert make_spec(config()) == DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=11,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=6,
        norm_eps=1e-6,
        rope=RopeSpec(theta=10_000.0),
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        max_position=32,
    )


def test_kv_heads_default_to_heads() -> None:
    assert make_spec(config(num_key_value_heads=None)).num_kv_heads == 2


def test_head_dim_may_differ_from_hidden_size_over_heads() -> None:
    spec = make_spec(config(head_dim=6))
    assert spec.layer_shapes()["q.weight"] == (12, 8)
    assert spec.layer_shapes()["o.weight"] == (8, 12)


def test_parameters_are_those_of_the_checkpoint() -> None:
    shapes = make_spec(config()).parameter_shapes()
    assert {tensor_name(name): shape for name, shape in shapes.items()} == SHAPES


def test_biases_belong_to_every_projection_of_their_half() -> None:
    shapes = make_spec(config(attention_bias=True, mlp_bias=True)).parameter_shapes()
    biases = {tensor_name(name): shape for name, shape in shapes.items() if "bias" in name}
    assert biases == {
        "model.layers.0.self_attn.q_proj.bias": (8,),
        "model.layers.0.self_attn.k_proj.bias": (4,),
        "model.layers.0.self_attn.v_proj.bias": (4,),
        "model.layers.0.self_attn.o_proj.bias": (8,),
        "model.layers.0.mlp.gate_proj.bias": (6,),
        "model.layers.0.mlp.up_proj.bias": (6,),
        "model.layers.0.mlp.down_proj.bias": (8,),
    }


def test_a_tied_model_needs_no_output_head_but_may_have_one() -> None:
    tied, untied = make_spec(config(tie_word_embeddings=True)), make_spec(config())
    assert "lm_head" not in tied.parameter_shapes()
    assert is_redundant("lm_head.weight", tied)
    assert not is_redundant("lm_head.weight", untied)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
LLAMA3_SPEC = RopeSpec(5e5, "llama3", 8.0, 1.0, 4.0, 8)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_theta": 5e5}, RopeSpec(5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeSpec(5e5)),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2}},
            RopeSpec(5e5, "linear", 2.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            RopeSpec(5e5, "linear", 2.0),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            LLAMA3_SPEC,
        ),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, LLAMA3_SPEC),
    ],
    ids=["old", "new", "linear new", "linear old", "llama3 new", "llama3 old"],
)
def test_both_spellings_of_rope_settings(changes: dict[str, Any], expected: RopeSpec) -> None:
    assert make_spec(config(**changes)).rope == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config.json lacks the key 'hidden_size'"),
        ({"vocab_size": -1}, "vocab_size = -1, but it must be a positive integer"),
        ({"vocab_size": True}, "vocab_size = True, but it must be a positive integer"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps = 'tiny', but it must be a positive number"),
        ({"attention_bias": 1}, "attention_bias = 1, but it must be true or false"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu', but it must be \"silu\""),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "num_key_value_heads = 2, but"),
        ({"head_dim": 5}, "head_dim = 5, but it must be even"),
        ({"rope_scaling": {"type": "yarn"}}, "config.json: rope_scaling has type = 'yarn', but"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5, but",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling lacks the key 'factor'"),
        ({"rope_scaling": 3}, "rope_scaling = 3, but it must be a JSON object"),
        (
            {"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
            "low_freq_factor = 4.0, but it must be less than high_freq_factor = 4.0",
        ),
    ],
)
def test_a_setting_that_cannot_be_run_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_spec(config(**changes))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["OtherForCausalLM"]},
            "names the architecture 'OtherForCausalLM', which is not supported; "
            "supported: LlamaForCausalLM",
        ),
        ({"architectures": None}, "architectures = None, but it must be a list with one name"),
        ({"quantization_config": {"bits": 4}}, "names a quantised checkpoint"),
    ],
)
def test_an_unsupported_architecture_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_architecture(config(**changes))
    assert message in caught.value.message
