"""Qwen 2 (https://arxiv.org/abs/2407.10671): Llama with biases of query, key and value."""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import read_attention, read_late_windows
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import llama_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec

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
