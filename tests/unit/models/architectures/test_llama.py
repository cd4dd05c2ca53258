from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import ConfigError
from pagemesh.models.architectures.llama import LLAMA
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture, unknown_architecture
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
    RopeSpec,
)
from tests.unit.models.model_folder import CONFIG, SHAPES

make_spec = LLAMA.make_spec


def config(**changes: Any) -> ConfigJson:
    values = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    return ConfigJson(values, "config.json")


def tensors(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    return {source.tensor: source.shape for source in LLAMA.sources(spec)}


def test_defaults_are_those_of_transformers() -> None:
    assert make_spec(config()) == DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=11,
        hidden_size=8,
        norm=NormSpec("rms", 1e-6),
        attention=AttentionSpec(2, 1, 4, scale=0.5),
        layers=(LayerSpec(MlpSpec(6), RopeSpec(10_000.0, 4)),),
        tie_word_embeddings=False,
        max_position=32,
        longest_position=32,
    )


@pytest.mark.parametrize("changes", [{"num_key_value_heads": None}, {}])
def test_kv_heads_default_to_heads(changes: dict[str, Any]) -> None:
    values = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}
    spec = make_spec(ConfigJson(values | changes, "config.json"))
    assert spec.attention.num_kv_heads == 2


def test_head_dim_may_differ_from_hidden_size_over_heads() -> None:
    spec = make_spec(config(head_dim=6))
    assert spec.layer_shapes(0)["qkv.weight"] == (24, 8)
    assert spec.layer_shapes(0)["o.weight"] == (8, 12)


def test_tensors_are_those_of_the_checkpoint() -> None:
    assert tensors(make_spec(config())) == SHAPES


def test_biases_belong_to_every_projection_of_their_half() -> None:
    shapes = tensors(make_spec(config(attention_bias=True, mlp_bias=True)))
    assert {name: shape for name, shape in shapes.items() if "bias" in name} == {
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
    assert "lm_head.weight" not in tensors(tied)
    assert LLAMA.may_ignore("lm_head.weight", tied)
    assert not LLAMA.may_ignore("lm_head.weight", untied)


def test_rotary_tables_of_old_checkpoints_are_not_read() -> None:
    spec = make_spec(config())
    assert LLAMA.may_ignore("model.layers.0.self_attn.rotary_emb.inv_freq", spec)
    assert not LLAMA.may_ignore("model.layers.0.self_attn.extra", spec)


def test_names_may_lack_the_prefix_of_the_whole_model() -> None:
    spec = make_spec(config())
    plain = {source.tensor for source in LLAMA.sources(spec)}
    short = {name.removeprefix("model.") for name in plain}
    assert {source.tensor for source in LLAMA.named_sources(spec, plain)} == plain
    assert {source.tensor for source in LLAMA.named_sources(spec, short)} == short


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
LLAMA3_SPEC = RopeSpec(5e5, 4, "llama3", 8.0, 8, 1.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_theta": 5e5}, RopeSpec(5e5, 4)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeSpec(5e5, 4)),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2}},
            RopeSpec(5e5, 4, "linear", 2.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            RopeSpec(5e5, 4, "linear", 2.0),
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
    assert make_spec(config(**changes)).layers[0].rope == expected


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
        ({"rope_scaling": {"type": "mrope"}}, "config.json: rope_scaling has type = 'mrope', but"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5, but",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling lacks the key 'factor'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "factor = 0.5, but it must be at"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [1]}},
            "long_factor = [1], but it must be a list of 2 positive numbers",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "full_attention = {'rope_theta': 10000.0}, but it must be absent: this architecture",
        ),
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
        ({"architectures": None}, "architectures = None, but it must be a list with one name"),
        (
            {"quantization_config": {"bits": 4}},
            "names a checkpoint quantised by an unnamed method",
        ),
        (
            {
                "architectures": ["GptOssForCausalLM"],
                "quantization_config": {"quant_method": "quark"},
            },
            "names a checkpoint quantised by quark, which cannot be read; those by awq, ",
        ),
    ],
)
def test_a_checkpoint_that_nobody_can_read_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        find_architecture(config(**changes))
    assert message in caught.value.message


def test_an_architecture_without_a_decoder_is_named_beside_those_that_have_one() -> None:
    other = config(architectures=["OtherForCausalLM"])
    assert find_architecture(other) is None
    assert unknown_architecture(other).message == (
        f"{other.where} names the architecture 'OtherForCausalLM', which pagemesh does not run itself; "
        "it runs BertForMaskedLM, BertModel, DistilBertForMaskedLM, DistilBertModel, "
        "FalconForCausalLM, Gemma2ForCausalLM, Gemma2Model, Gemma3ForCausalLM, "
        "Gemma3ForConditionalGeneration, GptOssForCausalLM, LlamaForCausalLM, LlamaModel, "
        "MistralForCausalLM, MistralModel, MixtralForCausalLM, ModernBertForMaskedLM, "
        "ModernBertModel, Phi3ForCausalLM, Phi3Model, "
        "Qwen2ForCausalLM, Qwen2Model, Qwen2MoeForCausalLM, Qwen3ForCausalLM, Qwen3Model, "
        "Qwen3MoeForCausalLM, RobertaForMaskedLM, RobertaModel, XLMRobertaForMaskedLM, XLMRobertaModel"
    )
