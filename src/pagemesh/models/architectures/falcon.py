"""Falcon (https://arxiv.org/abs/2311.16867): LayerNorm, one fused projection, attention beside the MLP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pagemesh.models.architectures.architecture import Architecture, Source
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope_config import DEFAULT_THETA, RopeFacts, longest_position, read_rope
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
    Residual,
    RopeSpec,
)

if TYPE_CHECKING:
    import torch

_NAME: Final = "FalconForCausalLM"


def make_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' FalconConfig."""
    config.require("activation", ("gelu",))
    attention = _read_attention(config)
    hidden_size = config.integer("hidden_size")
    max_position = config.integer("max_position_embeddings", 2048)
    rope: RopeSpec | None = None
    if not attention.alibi_slopes:
        rope = read_rope(config, RopeFacts(attention.head_dim, max_position, DEFAULT_THETA))
    mlp = MlpSpec(
        config.integer("ffn_hidden_size", 4 * hidden_size),
        "gelu",
        bias=attention.qkv_bias,
    )
    return DecoderSpec(
        architecture=_NAME,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        norm=NormSpec("layer", config.number("layer_norm_epsilon", 1e-5)),
        attention=attention,
        layers=(LayerSpec(mlp, rope),) * config.integer("num_hidden_layers"),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        max_position=max_position,
        longest_position=longest_position(rope, max_position) if rope else max_position,
        residual=_read_residual(config),
    )


def _read_attention(config: ConfigJson) -> AttentionSpec:
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    if hidden_size % (2 * num_heads) != 0:
        raise config.bad("hidden_size", f"a multiple of 2 · num_attention_heads = {2 * num_heads}")
    head_dim = hidden_size // num_heads
    num_kv_heads = config.integer("num_kv_heads", num_heads)
    if not config.flag("new_decoder_architecture", False):
        if config.flag("multi_query", True):
            num_kv_heads = 1
        elif num_kv_heads != num_heads:
            raise config.bad("num_kv_heads", f"num_attention_heads = {num_heads} in this variant")
    if num_heads % num_kv_heads != 0:
        raise config.bad("num_kv_heads", f"a divisor of num_attention_heads = {num_heads}")
    bias = config.flag("bias", False)
    scale = 1 / math.sqrt(head_dim)
    slopes = alibi_slopes(num_heads) if config.flag("alibi", False) else ()
    return AttentionSpec(
        num_heads,
        num_kv_heads,
        head_dim,
        scale,
        qkv_bias=bias,
        o_bias=bias,
        # Falcon scales the sum of scores and biases.
        alibi_slopes=tuple(scale * slope for slope in slopes),
    )


def _read_residual(config: ConfigJson) -> Residual:
    is_new = config.flag("new_decoder_architecture", False)
    is_parallel = config.flag("parallel_attn", True)
    if not is_parallel:
        if is_new:
            raise config.bad("parallel_attn", "true with new_decoder_architecture")
        return "sequential"
    num_norms = config.integer("num_ln_in_parallel_attn", 2 if is_new else 1)
    if num_norms > (2 if is_new else 1):
        raise config.bad("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture")
    return "parallel_two_norms" if num_norms == 2 else "parallel"


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """ALiBi's slopes (Press et al. 2021, https://arxiv.org/abs/2108.12409): powers of 2^(-8 / heads).

    For another number of heads than a power of two, the rest are every second slope of twice as many.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (index + 1) / power) for index in range(power)]
    between = [2.0 ** (-4 * (2 * index + 1) / power) for index in range(num_heads - power)]
    return tuple(slopes + between)


def sources(spec: DecoderSpec) -> Iterator[Source]:
    """Names of their own; query, key and value are fused kv head by kv head."""
    yield from _both("transformer.ln_f", (spec.hidden_size,), "final_norm", has_bias=True)
    table = (spec.vocab_size, spec.hidden_size)
    yield Source("transformer.word_embeddings.weight", table, "embed")
    if not spec.tie_word_embeddings:
        yield Source("lm_head.weight", table, "lm_head")
    for index in range(spec.num_layers):
        yield from _layer(spec, index)


def _layer(spec: DecoderSpec, index: int) -> Iterator[Source]:
    ours, theirs = f"layers.{index}.", f"transformer.h.{index}."
    shapes = spec.layer_shapes(index)
    for norm, name in _NORMS[spec.residual].items():
        yield from _both(theirs + name, (spec.hidden_size,), ours + norm, has_bias=True)
    has_bias = spec.attention.qkv_bias
    for part, name in (
        ("o", "self_attention.dense"),
        ("up", "mlp.dense_h_to_4h"),
        ("down", "mlp.dense_4h_to_h"),
    ):
        yield from _both(theirs + name, shapes[f"{part}.weight"], ours + part, has_bias=has_bias)
    for source in _both(
        f"{theirs}self_attention.query_key_value",
        shapes["qkv.weight"],
        f"{ours}qkv",
        has_bias=has_bias,
    ):
        yield source._replace(convert=lambda fused: _by_kind(fused, spec.attention))


def _both(
    tensor: str, shape: tuple[int, ...], parameter: str, *, has_bias: bool
) -> Iterator[Source]:
    yield Source(f"{tensor}.weight", shape, f"{parameter}.weight")
    if has_bias:
        yield Source(f"{tensor}.bias", shape[:1], f"{parameter}.bias")


def _by_kind(fused: torch.Tensor, attention: AttentionSpec) -> torch.Tensor:
    """From (queries, key, value) of each kv head to all queries, all keys, all values."""
    num_queries = attention.num_heads // attention.num_kv_heads
    groups = fused.view(
        attention.num_kv_heads, num_queries + 2, attention.head_dim, *fused.shape[1:]
    )
    regrouped = fused.new_empty(fused.shape)
    parts = (groups[:, :num_queries], groups[:, num_queries], groups[:, num_queries + 1])
    begin = 0
    for part in parts:
        rows = part.reshape(-1, *fused.shape[1:])
        regrouped[begin : begin + len(rows)] = rows
        begin += len(rows)
    return regrouped


_NORMS: Final[dict[Residual, dict[str, str]]] = {
    "sequential": {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    },
    "parallel": {"attention_norm": "input_layernorm"},
    "parallel_two_norms": {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"},
}

FALCON: Final = Architecture(_NAME, make_spec, sources, layouts=({}, {"transformer.": ""}))
