"""Gemma 3 (https://arxiv.org/abs/2503.19786): Gemma 2 with norms of heads, and a RoPE for local layers."""

from __future__ import annotations

from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import (
    FULL,
    SLIDING,
    read_layer_types,
    read_optional_window,
)
from pagemesh.models.architectures.gemma import (
    DTYPES,
    gemma_sources,
    make_gemma_spec,
    read_gemma_attention,
    read_soft_cap,
)
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope_config import RopeFacts, parse_rope, rope_settings
from pagemesh.models.spec import DecoderSpec, RopeSpec

_GEMMA3: Final = "Gemma3ForCausalLM"
_GEMMA3_WITH_IMAGES: Final = "Gemma3ForConditionalGeneration"
_GEMMA3_MAX_POSITION: Final = 131_072
_GEMMA3_GLOBAL_THETA: Final = 1e6
_GEMMA3_LOCAL_THETA: Final = 1e4


def make_gemma3_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Gemma3TextConfig."""
    num_layers = config.integer("num_hidden_layers", 26)
    # transformers reads it and then does without it, so that nobody knows what such a model needs.
    if config.get("attn_logit_softcapping") is not None:
        raise config.bad("attn_logit_softcapping", "null")
    attention = read_gemma_attention(config, head_norm=True)
    max_position = config.integer("max_position_embeddings", _GEMMA3_MAX_POSITION)
    ropes = _read_gemma3_ropes(config, attention.head_dim, max_position)
    window = read_optional_window(config, 4096)
    pattern = config.integer("sliding_window_pattern", 6)
    types = read_layer_types(config, num_layers, lambda index: (index + 1) % pattern != 0)
    return make_gemma_spec(
        config,
        _GEMMA3,
        262_208,
        max_position,
        attention,
        [(ropes[SLIDING], window) if is_sliding else (ropes[FULL], None) for is_sliding in types],
        read_soft_cap(config, "final_logit_softcapping", None),
    )


def _make_gemma3_text_spec(config: ConfigJson) -> DecoderSpec:
    text = config.child("text_config")
    if text is None:
        raise config.bad("text_config", "a JSON object")
    return make_gemma3_spec(text)


def _read_gemma3_ropes(config: ConfigJson, head_dim: int, max_position: int) -> dict[str, RopeSpec]:
    """transformers 5 has an object for each layer type; before, `rope_scaling` was for global layers."""
    settings = rope_settings(config)
    nothing = ConfigJson({}, settings.where)
    of_types = {name: settings.child(name) for name in (FULL, SLIDING)}
    if any(of_types.values()):
        chosen = {name: own or nothing for name, own in of_types.items()}
    else:
        chosen = {FULL: settings, SLIDING: nothing}
    thetas = {
        FULL: config.number("rope_theta", _GEMMA3_GLOBAL_THETA),
        SLIDING: config.number("rope_local_base_freq", _GEMMA3_LOCAL_THETA),
    }
    return {
        name: parse_rope(nothing, chosen[name], RopeFacts(head_dim, max_position, thetas[name]))
        for name in chosen
    }


GEMMA3: Final = Architecture(_GEMMA3, make_gemma3_spec, gemma_sources, dtypes=DTYPES)

GEMMA3_WITH_IMAGES: Final = Architecture(
    _GEMMA3_WITH_IMAGES,
    _make_gemma3_text_spec,
    gemma_sources,
    layouts=(
        {"model.": "model.language_model."},
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    ),
    ignored=(
        "model.vision_tower.",
        "model.multi_modal_projector.",
        "vision_tower.",
        "multi_modal_projector.",
    ),
    dtypes=DTYPES,
)
