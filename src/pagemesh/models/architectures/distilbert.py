"""DistilBERT (https://arxiv.org/abs/1910.01108): half of BERT's layers, without token types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.models.architectures.encoders import (
    input_sources,
    layer_sources,
    make_encoder_spec,
    make_encoders,
)
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.sources import Source
from pagemesh.models.spec import DecoderSpec, InputSpec

_DISTILBERT_QKV: Final = ("attention.q_lin", "attention.k_lin", "attention.v_lin")
_DISTILBERT_PARTS: Final = {
    "o": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}


def make_distilbert_spec(name: str, config: ConfigJson) -> DecoderSpec:
    """Read config.json, whose names are its own; defaults are those of transformers' DistilBertConfig.

    Positions that were sines once are in the checkpoint like learned ones.
    """
    config.require("activation", ("gelu",))
    places = InputSpec(
        config.integer("max_position_embeddings", 512), first_position=0, num_token_types=0
    )
    sizes = (
        config.integer("dim", 768),
        config.integer("hidden_dim", 3072),
        config.integer("n_layers", 6),
        config.integer("n_heads", 12),
    )
    return make_encoder_spec(config, name, places, sizes=sizes, norm_eps=1e-12)


def distilbert_sources(spec: DecoderSpec) -> Iterator[Source]:
    """The names of its tensors."""
    yield from input_sources(spec)
    for index in range(spec.num_layers):
        yield from layer_sources(
            spec, index, f"transformer.layer.{index}.", _DISTILBERT_QKV, _DISTILBERT_PARTS
        )


DISTILBERTS: Final = make_encoders(
    ("DistilBertModel", "DistilBertForMaskedLM"),
    make_distilbert_spec,
    distilbert_sources,
    "distilbert.",
)
