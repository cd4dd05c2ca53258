"""Gemma 2 (https://arxiv.org/abs/2408.00118): norms on both sides, soft caps, every second layer local."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import read_layer_types, read_optional_window
from pagemesh.models.architectures.gemma import (
    DTYPES,
    gemma_sources,
    make_gemma_spec,
    read_gemma_attention,
    read_soft_cap,
)
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope_config import DEFAULT_THETA, RopeFacts, read_rope
from pagemesh.models.spec import DecoderSpec

_GEMMA2: Final = "Gemma2ForCausalLM"
_GEMMA2_MAX_POSITION: Final = 8192


def make_gemma2_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Gemma2Config."""
    num_layers = config.integer("num_hidden_layers", 26)
    attention = replace(
        read_gemma_attention(config),
        soft_cap=read_soft_cap(config, "attn_logit_softcapping", 50.0),
    )
    max_position = config.integer("max_position_embeddings", _GEMMA2_MAX_POSITION)
    rope = read_rope(config, RopeFacts(attention.head_dim, max_position, DEFAULT_THETA))
    window = read_optional_window(config, 4096)
    types = read_layer_types(config, num_layers, lambda index: index % 2 == 0)
    return make_gemma_spec(
        config,
        _GEMMA2,
        256_000,
        max_position,
        attention,
        [(rope, window if is_sliding else None) for is_sliding in types],
        read_soft_cap(config, "final_logit_softcapping", 30.0),
    )


GEMMA2: Final = Architecture(_GEMMA2, make_gemma2_spec, gemma_sources, dtypes=DTYPES)
