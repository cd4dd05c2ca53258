"""ModernBERT (https://arxiv.org/abs/2412.13663): an encoder with RoPE, GeGLU and windows in most layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from pagemesh.models.architectures.architecture import Source
from pagemesh.models.architectures.bert import make_encoders
from pagemesh.models.architectures.fields import FULL, SLIDING, read_layer_types
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope_config import RopeFacts, parse_rope
from pagemesh.models.spec import (
    AttentionSpec,
    DecoderSpec,
    InputSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
    RopeSpec,
)

_THETAS: Final = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
_PARTS: Final = {
    "attention_norm": "attn_norm",
    "qkv": "attn.Wqkv",
    "o": "attn.Wo",
    "mlp_norm": "mlp_norm",
    "up": "mlp.Wi",
    "down": "mlp.Wo",
}


def make_spec(name: str, config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' ModernBertConfig."""
    config.require("hidden_activation", ("gelu",))
    hidden_size = config.integer("hidden_size", 768)
    num_heads = config.integer("num_attention_heads", 12)
    if hidden_size % (2 * num_heads) != 0:
        raise config.bad("hidden_size", f"a multiple of 2 · num_attention_heads = {2 * num_heads}")
    head_dim = hidden_size // num_heads
    num_layers = config.integer("num_hidden_layers", 22)
    max_position = config.integer("max_position_embeddings", 8192)
    period = config.integer("global_attn_every_n_layers", 3)
    types = read_layer_types(config, num_layers, lambda index: index % period != 0)
    ropes = _read_ropes(config, head_dim, max_position)
    # Half of the window is in front of a token, half behind it, and itself is in both.
    window = config.integer("local_attention", 128) // 2 + 1
    has_bias = config.flag("attention_bias", False)
    mlp = MlpSpec(
        config.integer("intermediate_size", 1152), "geglu", bias=config.flag("mlp_bias", False)
    )
    return DecoderSpec(
        architecture=name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        norm=NormSpec("layer", config.number("norm_eps", 1e-5), config.flag("norm_bias", False)),
        attention=AttentionSpec(
            num_heads,
            num_heads,
            head_dim,
            scale=1 / math.sqrt(head_dim),
            qkv_bias=has_bias,
            o_bias=has_bias,
        ),
        layers=tuple(
            LayerSpec(
                mlp,
                ropes[SLIDING if is_sliding else FULL],
                window if is_sliding else None,
                # Its input is the embeddings' norm.
                norms_input=index > 0,
            )
            for index, is_sliding in enumerate(types)
        ),
        tie_word_embeddings=True,
        max_position=max_position,
        longest_position=max_position,
        has_head=False,
        causal=False,
        input=InputSpec(),
    )


def _read_ropes(config: ConfigJson, head_dim: int, max_position: int) -> dict[str, RopeSpec]:
    """transformers 5 has an object for each layer type; before, there were two keys."""
    nothing = ConfigJson({}, config.where)
    if config.get("rope_scaling") is not None:
        raise config.bad(
            "rope_scaling", "null: the frequencies of this architecture are not stretched"
        )
    settings = config.child("rope_parameters") or nothing
    return {
        kind: parse_rope(
            nothing,
            settings.child(kind) or nothing,
            RopeFacts(head_dim, max_position, config.number(key, default), kinds=("default",)),
        )
        for kind, (key, default) in _THETAS.items()
    }


def sources(spec: DecoderSpec) -> Iterator[Source]:
    """Names of their own; query, key and value are one, as are gate and up."""
    table = (spec.vocab_size, spec.hidden_size)
    yield Source("embeddings.tok_embeddings.weight", table, "embed")
    names = {"embeddings.norm": "embed_norm", "final_norm": "final_norm"}
    for index in range(spec.num_layers):
        layer = f"layers.{index}."
        names |= {layer + tensor: layer + name for name, tensor in _PARTS.items()}
    shapes = spec.parameter_shapes()
    for tensor, name in names.items():
        for kind in ("weight", "bias"):
            shape = shapes.get(f"{name}.{kind}")
            if shape is not None:
                yield Source(f"{tensor}.{kind}", shape, f"{name}.{kind}")


MODERNBERTS: Final = make_encoders(
    ("ModernBertModel", "ModernBertForMaskedLM"), make_spec, sources, "model."
)
