"""Llama 2 and 3 (https://arxiv.org/abs/2407.21783): RMSNorm, grouped-query attention, gated SiLU."""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import read_attention
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import llama_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec

_LLAMA: Final = "LlamaForCausalLM"


def make_llama_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' LlamaConfig."""
    num_layers = config.integer("num_hidden_layers")
    bias = config.flag("attention_bias", False)
    return make_decoder_spec(
        config,
        _LLAMA,
        Defaults(max_position=2048),
        read_attention(config, qkv_bias=bias, o_bias=bias),
        [read_mlp(config, config.flag("mlp_bias", False))] * num_layers,
        [None] * num_layers,
    )


LLAMA: Final = Architecture(_LLAMA, make_llama_spec, llama_sources)
