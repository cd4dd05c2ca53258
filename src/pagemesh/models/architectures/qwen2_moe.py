"""Qwen 2 MoE (https://arxiv.org/abs/2407.10671): Qwen 2 with experts, one of which all tokens use."""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import (
    mixture_where_sparse,
    read_attention,
    read_mixture,
    read_switched_windows,
)
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import llama_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec, MlpSpec

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
