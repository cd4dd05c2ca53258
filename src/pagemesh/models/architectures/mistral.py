"""Mistral (https://arxiv.org/abs/2310.06825): Llama with a sliding window in every layer."""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import read_attention, read_optional_window
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import llama_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec

_MISTRAL: Final = "MistralForCausalLM"


def make_mistral_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' MistralConfig."""
    num_layers = config.integer("num_hidden_layers")
    return make_decoder_spec(
        config,
        _MISTRAL,
        Defaults(max_position=4096 * 32),
        read_attention(config, num_kv_heads=8),
        [read_mlp(config)] * num_layers,
        [read_optional_window(config, 4096)] * num_layers,
    )


MISTRAL: Final = Architecture(_MISTRAL, make_mistral_spec, llama_sources)
