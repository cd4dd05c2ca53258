"""What Gemma 2 and 3 have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pagemesh.models.architectures.fields import read_attention
from pagemesh.models.architectures.names import (
    ends,
    norms,
    plus_one,
    split_attention,
    split_feed_forward,
)
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope_config import longest_position
from pagemesh.models.sources import Source
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
    RopeSpec,
)

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
