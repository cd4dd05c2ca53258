"""Qwen 3 (https://arxiv.org/abs/2505.09388): Llama with norms of query and key heads."""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import read_attention, read_late_windows
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import llama_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec

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
