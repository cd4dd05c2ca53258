"""Published models' config.json, shortened to what the spec reads, and their known sizes."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import pytest

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec, RopeSpec


class Model(NamedTuple):
    """A published model."""

    architecture: str
    num_weights: int
    config: dict[str, Any]


def sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, positions: int
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
    }


LLAMA3_ROPE = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
MODELS = {
    "Llama-3.2-1B": Model(
        "LlamaForCausalLM",
        1_235_814_400,
        sizes(128256, 2048, 8192, 16, 32, 8, 131072)
        | {
            "head_dim": 64,
            "rope_theta": 500000.0,
            "rope_scaling": LLAMA3_ROPE,
            "tie_word_embeddings": True,
        },
    ),
    "Mistral-7B-v0.1": Model(
        "MistralForCausalLM",
        7_241_732_096,
        sizes(32000, 4096, 14336, 32, 32, 8, 32768) | {"sliding_window": 4096},
    ),
    "Qwen2.5-0.5B": Model(
        "Qwen2ForCausalLM",
        494_032_768,
        sizes(151936, 896, 4864, 24, 14, 2, 32768)
        | {
            "max_window_layers": 24,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "use_mrope": False,
            "use_sliding_window": False,
        },
    ),
    "Qwen3-0.6B": Model(
        "Qwen3ForCausalLM",
        596_049_920,
        sizes(151936, 1024, 3072, 28, 16, 8, 40960)
        | {
            "head_dim": 128,
            "max_window_layers": 28,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
        },
    ),
    "Gemma-2-2B": Model(
        "Gemma2ForCausalLM",
        2_614_341_888,
        sizes(256000, 2304, 9216, 26, 8, 4, 8192)
        | {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
    ),
    "Gemma-3-1B": Model(
        "Gemma3ForCausalLM",
        999_885_952,
        sizes(262144, 1152, 6912, 26, 4, 1, 32768)
        | {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
    ),
    "Phi-3-mini-4k": Model(
        "Phi3ForCausalLM",
        3_821_079_552,
        sizes(32064, 3072, 8192, 32, 32, 32, 4096)
        | {
            "attention_bias": False,
            "original_max_position_embeddings": 4096,
            "rope_scaling": None,
            "sliding_window": 2047,
        },
    ),
    "Phi-4-mini": Model(
        "Phi3ForCausalLM",
        3_836_021_760,
        sizes(200064, 3072, 8192, 32, 24, 8, 131072)
        | {
            "attention_bias": False,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75,
            "rope_scaling": {
                "long_factor": [2.0] * 48,
                "short_factor": [1.0] * 48,
                "type": "longrope",
            },
            "sliding_window": 262144,
            "tie_word_embeddings": True,
        },
    ),
    "Falcon-7B": Model(
        "FalconForCausalLM",
        6_921_720_704,
        {
            "alibi": False,
            "bias": False,
            "hidden_size": 4544,
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "parallel_attn": True,
            "vocab_size": 65024,
        },
    ),
    "Mixtral-8x7B": Model(
        "MixtralForCausalLM",
        46_702_792_704,
        sizes(32000, 4096, 14336, 32, 32, 8, 32768)
        | {"num_experts_per_tok": 2, "num_local_experts": 8, "sliding_window": None},
    ),
    "Qwen1.5-MoE-A2.7B": Model(
        "Qwen2MoeForCausalLM",
        14_315_784_192,
        sizes(151936, 2048, 5632, 24, 16, 16, 8192)
        | {
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": False,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "Qwen3-30B-A3B": Model(
        "Qwen3MoeForCausalLM",
        30_532_122_624,
        sizes(151936, 2048, 6144, 48, 32, 4, 40960)
        | {
            "decoder_sparse_step": 1,
            "head_dim": 128,
            "mlp_only_layers": [],
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
    ),
    "gpt-oss-20b": Model(
        "GptOssForCausalLM",
        20_914_757_184,
        sizes(201088, 2880, 2880, 24, 64, 8, 131072)
        | {
            "attention_bias": True,
            "head_dim": 64,
            "num_experts_per_tok": 4,
            "num_local_experts": 32,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "rope_theta": 150000,
            "sliding_window": 128,
        },
    ),
    # Without the pooler, which embeddings do without.
    "all-MiniLM-L6-v2": Model(
        "BertModel",
        22_713_216 - 147_840,
        {
            "vocab_size": 30522,
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "hidden_act": "gelu",
            "position_embedding_type": "absolute",
            "pad_token_id": 0,
        },
    ),
    "multilingual-e5-base": Model(
        "XLMRobertaModel",
        278_043_648 - 590_592,
        {
            "vocab_size": 250002,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "position_embedding_type": "absolute",
            "pad_token_id": 1,
        },
    ),
    "gte-modernbert-base": Model(
        "ModernBertModel",
        149_014_272,
        {
            "vocab_size": 50368,
            "hidden_size": 768,
            "intermediate_size": 1152,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "max_position_embeddings": 8192,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
            "local_attention": 128,
            "hidden_activation": "gelu",
            "norm_eps": 1e-5,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "position_embedding_type": "absolute",
        },
    ),
    "distilbert-base-uncased": Model(
        "DistilBertForMaskedLM",
        66_362_880,
        {
            "vocab_size": 30522,
            "dim": 768,
            "hidden_dim": 3072,
            "n_layers": 6,
            "n_heads": 12,
            "max_position_embeddings": 512,
            "activation": "gelu",
            "pad_token_id": 0,
            "sinusoidal_pos_embds": False,
            "tie_weights_": True,
        },
    ),
}


def make_spec(name: str) -> DecoderSpec:
    model = MODELS[name]
    config = ConfigJson({"architectures": [model.architecture], **model.config}, "config.json")
    architecture = find_architecture(config)
    assert architecture is not None
    return architecture.make_spec(config)


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_its_number_of_weights(name: str) -> None:
    shapes = make_spec(name).parameter_shapes()
    assert sum(map(prod, shapes.values())) == MODELS[name].num_weights


def test_weights_of_a_token_in_models_whose_names_say_so() -> None:
    active = {
        name: sum(map(spec.num_active_weights, range(spec.num_layers)))
        for name in ("Qwen1.5-MoE-A2.7B", "Qwen3-30B-A3B")
        for spec in [make_spec(name)]
    }
    # And a table of 0.31 billion at each end.
    assert active == {"Qwen1.5-MoE-A2.7B": 2_066_841_600, "Qwen3-30B-A3B": 2_730_700_800}


def test_three_quarters_of_a_head_turn_in_phi_4_mini() -> None:
    rope = make_spec("Phi-4-mini").layers[0].rope
    assert isinstance(rope, RopeSpec)
    assert rope.rotary_dim == 96
    # √(1 + ln 32 / ln 4096).
    assert rope.attention_factor == pytest.approx(1.1902380714238083)
