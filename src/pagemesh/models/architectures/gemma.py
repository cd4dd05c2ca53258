"""Gemma 2 and 3.

Gemma 2 (https://arxiv.org/abs/2408.00118) has norms on both sides, soft caps, and a window in every second layer;
Gemma 3 (https://arxiv.org/abs/2503.19786) has norms of heads as well, and a RoPE of their own for layers with a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pagemesh.models.architectures.architecture import Architecture, Source
from pagemesh.models.architectures.fields import (
    FULL,
    SLIDING,
    read_attention,
    read_layer_types,
    read_optional_window,
)
from pagemesh.models.architectures.names import (
    ends,
    norms,
    plus_one,
    split_attention,
    split_feed_forward,
)
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope_config import (
    DEFAULT_THETA,
    RopeFacts,
    longest_position,
    parse_rope,
    read_rope,
    rope_settings,
)
from pagemesh.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MlpSpec, NormSpec, RopeSpec

DTYPES: Final = ("float32", "bfloat16")
"""Not float16: activations of trained models exceed its range."""

_NORMS: Final = {
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


def read_gemma_attention(config: ConfigJson, *, head_norm: bool = False) -> AttentionSpec:
    """Heads, and a scale that is a setting of its own."""
    config.require("use_bidirectional_attention", (False,))
    bias = config.flag("attention_bias", False)
    attention = read_attention(
        config,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        qkv_bias=bias,
        o_bias=bias,
        head_norm=head_norm,
    )
    return replace(attention, scale=config.number("query_pre_attn_scalar", 256) ** -0.5)


def read_soft_cap(config: ConfigJson, key: str, default: float | None) -> float | None:
    """The default when the key is absent, none when it is null."""
    if config.get(key) is not None:
        return config.number(key)
    return None if config.has(key) else default


def make_gemma_spec(
    config: ConfigJson,
    architecture: str,
    vocab_size: int,
    max_position: int,
    attention: AttentionSpec,
    layers: Sequence[tuple[RopeSpec, int | None]],
    logit_soft_cap: float | None,
) -> DecoderSpec:
    """`layers` are each layer's RoPE and window; the numbers are the architecture's defaults."""
    config.require("hidden_activation", ("gelu_pytorch_tanh",))
    mlp = MlpSpec(config.integer("intermediate_size", 9216), "gelu_tanh")
    hidden_size = config.integer("hidden_size", 2304)
    max_position = config.integer("max_position_embeddings", max_position)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size", vocab_size),
        hidden_size=hidden_size,
        norm=NormSpec("rms", config.number("rms_norm_eps", 1e-6)),
        attention=attention,
        layers=tuple(LayerSpec(mlp, rope, window) for rope, window in layers),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        max_position=max_position,
        longest_position=min(longest_position(rope, max_position) for rope, _ in layers),
        residual="post_norms",
        embedding_scale=math.sqrt(hidden_size),
        logit_soft_cap=logit_soft_cap,
    )


def gemma_sources(spec: DecoderSpec) -> Iterator[Source]:
    """Llama's names, and two norms more in each layer; norms multiply by 1 + weight."""
    yield from ends(spec, plus_one)
    for index in range(spec.num_layers):
        yield from norms(spec, index, _NORMS, plus_one)
        yield from split_attention(spec, index, plus_one)
        yield from split_feed_forward(spec, index)


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
