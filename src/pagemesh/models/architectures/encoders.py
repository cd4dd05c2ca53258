"""What the encoders have in common: BERT's spec (https://arxiv.org/abs/1810.04805) and their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from pagemesh.core.engine import Pooling
from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.sources import Source, stack_rows
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    InputSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
)

POOLING: Final = Pooling("cls", normalize=True)
"""Of folders that say nothing, as in vLLM: the first token's state, which BERT was trained to fill."""

HEADS: Final = ("pooler.", "cls.", "lm_head.", "vocab_", "head.", "decoder.")
"""Beginnings of names behind the last layer, which embeddings do without."""


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
    ignored = (*HEADS, "embeddings.position_ids")
    return [
        Architecture(
            name,
            partial(make_spec, name),
            sources,
            layouts=({}, {part: prefix + part for part in _BEGINNINGS}),
            older_endings=_OLDER_ENDINGS,
            ignored=(*ignored, *(prefix + part for part in ignored)),
            pooling=POOLING,
        )
        for name in names
    ]


_OLDER_ENDINGS: Final = {
    "LayerNorm.weight": "LayerNorm.gamma",
    "LayerNorm.bias": "LayerNorm.beta",
}
"""Google's BERT was converted from TensorFlow."""

_BEGINNINGS: Final = ("embeddings.", "encoder.", "transformer.", "layers.", "final_norm.")
