"""BERT (https://arxiv.org/abs/1810.04805) and the encoders that are built like it.

RoBERTa (https://arxiv.org/abs/1907.11692) has the same layers; its positions begin behind that of its padding token.
XLM-RoBERTa (https://arxiv.org/abs/1911.02116) is RoBERTa with another vocabulary. DistilBERT
(https://arxiv.org/abs/1910.01108) has half of BERT's layers, and no token types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from pagemesh.core.engine import Pooling
from pagemesh.models.architectures.architecture import Architecture, Source, stack_rows
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import AttentionSpec, DecoderSpec, InputSpec, LayerSpec, MlpSpec, NormSpec

_POOLING: Final = Pooling("cls", normalize=True)
"""Of folders that say nothing, as in vLLM: the first token's state, which BERT was trained to fill."""

_HEADS: Final = ("pooler.", "cls.", "lm_head.", "vocab_", "head.", "decoder.")
"""Beginnings of names behind the last layer, which embeddings do without."""

_OLDER_ENDINGS: Final = {
    "LayerNorm.weight": "LayerNorm.gamma",
    "LayerNorm.bias": "LayerNorm.beta",
}
"""Google's BERT was converted from TensorFlow."""

_BEGINNINGS: Final = ("embeddings.", "encoder.", "transformer.", "layers.", "final_norm.")


def make_encoder_spec(
    config: ConfigJson,
    architecture: str,
    places: InputSpec,
    *,
    sizes: tuple[int, int, int, int],
    norm_eps: float,
) -> DecoderSpec:
    """Learned positions, and LayerNorm of each sum; `sizes` are hidden, inner, layers and heads."""
    config.require("is_decoder", (False,))
    config.require("add_cross_attention", (False,))
    hidden_size, inner_size, num_layers, num_heads = sizes
    if hidden_size % num_heads != 0:
        raise config.bad("hidden_size", f"a multiple of {num_heads}, the number of heads")
    head_dim = hidden_size // num_heads
    max_position = places.num_positions - places.first_position
    if max_position < 1:
        raise config.bad("max_position_embeddings", f"more than {places.first_position}")
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        norm=NormSpec("layer", norm_eps),
        attention=AttentionSpec(
            num_heads,
            num_heads,
            head_dim,
            scale=1 / math.sqrt(head_dim),
            qkv_bias=True,
            o_bias=True,
        ),
        layers=(LayerSpec(MlpSpec(inner_size, "gelu", bias=True), rope=None),) * num_layers,
        tie_word_embeddings=True,
        max_position=max_position,
        longest_position=max_position,
        residual="normed_sums",
        has_head=False,
        causal=False,
        input=places,
    )


def input_sources(spec: DecoderSpec) -> Iterator[Source]:
    """The tables in front of the first layer, and their norm."""
    assert spec.input is not None, "an encoder has tables"
    hidden = spec.hidden_size
    yield Source("embeddings.word_embeddings.weight", (spec.vocab_size, hidden), "embed")
    positions = (spec.input.num_positions, hidden)
    yield Source("embeddings.position_embeddings.weight", positions, "positions")
    if spec.input.num_token_types:
        types = (spec.input.num_token_types, hidden)
        yield Source("embeddings.token_type_embeddings.weight", types, "token_types")
    yield from with_bias("embeddings.LayerNorm", (hidden,), "embed_norm")


def layer_sources(
    spec: DecoderSpec,
    index: int,
    theirs: str,
    qkv: tuple[str, str, str],
    parts: Mapping[str, str],
) -> Iterator[Source]:
    """A layer's tensors, whose names begin with `theirs`; `parts` are the spec's names and theirs."""
    ours, shapes, hidden = f"layers.{index}.", spec.layer_shapes(index), spec.hidden_size
    for kind, columns in (("weight", (hidden,)), ("bias", ())):
        tensors = [(f"{theirs}{name}.{kind}", hidden) for name in qkv]
        yield from stack_rows(f"{ours}qkv.{kind}", tensors, columns)
    for name, tensor in parts.items():
        yield from with_bias(theirs + tensor, shapes[f"{name}.weight"], ours + name)


def with_bias(tensor: str, shape: tuple[int, ...], parameter: str) -> Iterator[Source]:
    """A weight of this shape, and its bias."""
    yield Source(f"{tensor}.weight", shape, f"{parameter}.weight")
    yield Source(f"{tensor}.bias", shape[:1], f"{parameter}.bias")


def make_encoders(
    names: Iterable[str],
    make_spec: Callable[[str, ConfigJson], DecoderSpec],
    sources: Callable[[DecoderSpec], Iterable[Source]],
    prefix: str,
) -> list[Architecture]:
    """One architecture for each of its names; with a head on top, tensors' names begin with `prefix`."""
    ignored = (*_HEADS, "embeddings.position_ids")
    return [
        Architecture(
            name,
            partial(make_spec, name),
            sources,
            layouts=({}, {part: prefix + part for part in _BEGINNINGS}),
            older_endings=_OLDER_ENDINGS,
            ignored=(*ignored, *(prefix + part for part in ignored)),
            pooling=_POOLING,
        )
        for name in names
    ]


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
