"""Qwen 3 MoE (https://arxiv.org/abs/2505.09388): Qwen 3 with experts."""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import (
    mixture_where_sparse,
    read_attention,
    read_mixture,
    read_optional_window,
)
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import llama_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec, MlpSpec

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
