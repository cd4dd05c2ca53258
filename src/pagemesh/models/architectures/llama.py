"""Llama, and what differs from it little: RMSNorm, grouped-query attention, gated SiLU.

Llama 2 and 3 (https://arxiv.org/abs/2407.21783); Phi-3 and Phi-4 (https://arxiv.org/abs/2404.14219), with fused
projections and LongRoPE; Mistral (https://arxiv.org/abs/2310.06825), with a sliding window in every layer; Mixtral
(https://arxiv.org/abs/2401.04088), with a mixture of experts in every layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from pagemesh.models.architectures.architecture import Architecture, Source
from pagemesh.models.architectures.fields import read_attention, read_mixture, read_optional_window
from pagemesh.models.architectures.names import (
    ends,
    llama_sources,
    norms,
    split_attention,
    split_mixture,
)
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


_PHI3: Final = "Phi3ForCausalLM"


def make_phi3_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Phi3Config."""
    num_layers = config.integer("num_hidden_layers")
    config.require("attention_bias", (False,))
    return make_decoder_spec(
        config,
        _PHI3,
        Defaults(
            max_position=4096,
            norm_eps=1e-5,
            original_max_position=4096,
            partial_rope=True,
            rope_kinds=("default", "longrope", "su", "yarn"),
        ),
        read_attention(config),
        [read_mlp(config)] * num_layers,
        [read_optional_window(config, None)] * num_layers,
    )


def phi3_sources(spec: DecoderSpec) -> Iterator[Source]:
    """The checkpoint's projections are fused in the decoder's own way."""
    yield from ends(spec)
    for index in range(spec.num_layers):
        yield from norms(spec, index)
        shapes = spec.layer_shapes(index)
        for ours, theirs in (
            ("qkv.weight", "self_attn.qkv_proj.weight"),
            ("o.weight", "self_attn.o_proj.weight"),
            ("up.weight", "mlp.gate_up_proj.weight"),
            ("down.weight", "mlp.down_proj.weight"),
        ):
            name = f"model.layers.{index}.{theirs}"
            yield Source(name, shapes[ours], f"layers.{index}.{ours}")


PHI3: Final = Architecture(_PHI3, make_phi3_spec, phi3_sources)


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


_MIXTRAL: Final = "MixtralForCausalLM"


def make_mixtral_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' MixtralConfig."""
    num_layers = config.integer("num_hidden_layers")
    mixture = read_mixture(config, read_mlp(config), 8, 2, normalize=True)
    return make_decoder_spec(
        config,
        _MIXTRAL,
        Defaults(max_position=4096 * 32, norm_eps=1e-5, theta=1e6),
        read_attention(config, num_kv_heads=8),
        [mixture] * num_layers,
        [read_optional_window(config, None)] * num_layers,
    )


def mixtral_sources(spec: DecoderSpec) -> Iterator[Source]:
    """Gate, down and up of an expert are called w1, w2 and w3."""
    yield from ends(spec)
    for index, layer in enumerate(spec.layers):
        yield from norms(spec, index)
        yield from split_attention(spec, index)
        assert isinstance(layer.mlp, MoeSpec)
        theirs = f"model.layers.{index}.block_sparse_moe."
        yield from split_mixture(spec, layer.mlp, f"layers.{index}.", theirs, ("w1", "w3", "w2"))


MIXTRAL: Final = Architecture(_MIXTRAL, make_mixtral_spec, mixtral_sources)
