"""Qwen 2 and 3, dense and with experts.

Qwen 2 (https://arxiv.org/abs/2407.10671) is Llama with biases of query, key and value, its mixture has one expert that
all tokens use; Qwen 3 (https://arxiv.org/abs/2505.09388) is Llama with norms of query and key heads.
"""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import (
    mixture_where_sparse,
    read_attention,
    read_late_windows,
    read_mixture,
    read_optional_window,
    read_switched_windows,
)
from pagemesh.models.architectures.llama import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import llama_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec, MlpSpec

_QWEN2: Final = "Qwen2ForCausalLM"


def make_qwen2_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Qwen2Config."""
    num_layers = config.integer("num_hidden_layers")
    return make_decoder_spec(
        config,
        _QWEN2,
        Defaults(max_position=32768),
        read_attention(config, num_kv_heads=32, qkv_bias=True),
        [read_mlp(config)] * num_layers,
        read_late_windows(config, num_layers),
    )


QWEN2: Final = Architecture(_QWEN2, make_qwen2_spec, llama_sources)


_QWEN2_MOE: Final = "Qwen2MoeForCausalLM"


def make_qwen2_moe_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Qwen2MoeConfig."""
    num_layers = config.integer("num_hidden_layers")
    mixture = read_mixture(
        config,
        MlpSpec(config.integer("moe_intermediate_size", 1408)),
        60,
        4,
        normalize=config.flag("norm_topk_prob", False),
        shared=MlpSpec(config.integer("shared_expert_intermediate_size", 5632)),
    )
    return make_decoder_spec(
        config,
        _QWEN2_MOE,
        Defaults(max_position=32768),
        read_attention(config, num_kv_heads=16, qkv_bias=config.flag("qkv_bias", True)),
        mixture_where_sparse(config, num_layers, mixture, read_mlp(config)),
        _read_qwen2_moe_windows(config, num_layers),
    )


def _read_qwen2_moe_windows(config: ConfigJson, num_layers: int) -> tuple[int | None, ...]:
    """Every second of the first layers, which is not what Qwen 2 does."""
    num_first = config.count("max_window_layers", 28)
    return read_switched_windows(
        config, num_layers, lambda index: index % 2 == 0 and index < num_first
    )


QWEN2_MOE: Final = Architecture(_QWEN2_MOE, make_qwen2_moe_spec, llama_sources)


_QWEN3: Final = "Qwen3ForCausalLM"


def make_qwen3_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Qwen3Config."""
    num_layers = config.integer("num_hidden_layers")
    bias = config.flag("attention_bias", False)
    return make_decoder_spec(
        config,
        _QWEN3,
        Defaults(max_position=32768),
        read_attention(
            config, num_kv_heads=32, head_dim=128, qkv_bias=bias, o_bias=bias, head_norm=True
        ),
        [read_mlp(config)] * num_layers,
        read_late_windows(config, num_layers),
    )


QWEN3: Final = Architecture(_QWEN3, make_qwen3_spec, llama_sources)


_QWEN3_MOE: Final = "Qwen3MoeForCausalLM"


def make_qwen3_moe_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Qwen3MoeConfig."""
    num_layers = config.integer("num_hidden_layers")
    bias = config.flag("attention_bias", False)
    mixture = read_mixture(
        config,
        MlpSpec(config.integer("moe_intermediate_size", 768)),
        128,
        8,
        normalize=config.flag("norm_topk_prob", False),
    )
    has_windows = config.flag("use_sliding_window", False)
    return make_decoder_spec(
        config,
        _QWEN3_MOE,
        Defaults(max_position=32768),
        read_attention(config, num_kv_heads=4, qkv_bias=bias, o_bias=bias, head_norm=True),
        mixture_where_sparse(config, num_layers, mixture, read_mlp(config)),
        [read_optional_window(config, 4096) if has_windows else None] * num_layers,
    )


QWEN3_MOE: Final = Architecture(_QWEN3_MOE, make_qwen3_moe_spec, llama_sources)
