"""Mixtral (https://arxiv.org/abs/2401.04088): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import read_attention, read_mixture, read_optional_window
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import ends, norms, split_attention, split_mixture
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.sources import Source
from pagemesh.models.spec import DecoderSpec, MoeSpec

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
