"""BERT (https://arxiv.org/abs/1810.04805) and RoBERTa (https://arxiv.org/abs/1907.11692): encoders.

The same layers; RoBERTa's positions begin behind that of its padding token. XLM-RoBERTa
(https://arxiv.org/abs/1911.02116) is RoBERTa with another vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
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

_BERT_QKV: Final = ("attention.self.query", "attention.self.key", "attention.self.value")
_BERT_PARTS: Final = {
    "o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}


def make_bert_spec(name: str, config: ConfigJson, *, pads: bool) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' configurations.

    With `pads`, positions up to the padding token's id are kept for padding.
    """
    config.require("hidden_act", ("gelu",))
    config.require("position_embedding_type", ("absolute",))
    places = InputSpec(
        num_positions=config.integer("max_position_embeddings", 512),
        first_position=config.count("pad_token_id", 1) + 1 if pads else 0,
        num_token_types=config.count("type_vocab_size", 2),
    )
    sizes = (
        config.integer("hidden_size", 768),
        config.integer("intermediate_size", 3072),
        config.integer("num_hidden_layers", 12),
        config.integer("num_attention_heads", 12),
    )
    eps = config.number("layer_norm_eps", 1e-12)
    return make_encoder_spec(config, name, places, sizes=sizes, norm_eps=eps)


def bert_sources(spec: DecoderSpec) -> Iterator[Source]:
    """The names of BERT's tensors."""
    yield from input_sources(spec)
    for index in range(spec.num_layers):
        yield from layer_sources(spec, index, f"encoder.layer.{index}.", _BERT_QKV, _BERT_PARTS)


BERTS: Final = (
    *make_encoders(
        ("BertModel", "BertForMaskedLM"), partial(make_bert_spec, pads=False), bert_sources, "bert."
    ),
    *make_encoders(
        ("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM"),
        partial(make_bert_spec, pads=True),
        bert_sources,
        "roberta.",
    ),
)
