"""From the parts that differ to the spec of a decoder in the manner of Llama."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope_config import (
    ALL_KINDS,
    DEFAULT_THETA,
    RopeFacts,
    longest_position,
    read_rope,
)
from pagemesh.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MlpSpec, MoeSpec, NormSpec


class Defaults(NamedTuple):
    """What config.json may leave out, as in transformers' configuration of the architecture."""

    max_position: int
    norm_eps: float = 1e-6
    theta: float = DEFAULT_THETA
    original_max_position: int | None = None
    partial_rope: bool = False  # whether a part of each head may be turned
    rope_kinds: Collection[str] = ALL_KINDS


def read_mlp(config: ConfigJson, bias: bool = False) -> MlpSpec:
    """The gated SiLU MLP that all of these architectures have."""
    config.require("hidden_act", ("silu",))
    return MlpSpec(config.integer("intermediate_size"), bias=bias)


def make_decoder_spec(
    config: ConfigJson,
    architecture: str,
    defaults: Defaults,
    attention: AttentionSpec,
    mlps: Sequence[MlpSpec | MoeSpec],
    windows: Sequence[int | None],
) -> DecoderSpec:
    """RMSNorm before attention and before each of the `mlps`, one RoPE, and `windows` for each layer."""
    max_position = config.integer("max_position_embeddings", defaults.max_position)
    facts = RopeFacts(
        attention.head_dim,
        max_position,
        defaults.theta,
        defaults.original_max_position,
        defaults.partial_rope,
        defaults.rope_kinds,
    )
    rope = read_rope(config, facts)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        norm=NormSpec("rms", config.number("rms_norm_eps", defaults.norm_eps)),
        attention=attention,
        layers=tuple(
            LayerSpec(mlp, rope, window) for mlp, window in zip(mlps, windows, strict=True)
        ),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        max_position=max_position,
        longest_position=longest_position(rope, max_position),
    )
