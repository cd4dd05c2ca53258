"""Puts a decoder together: from a spec and its parameters to parts that know nothing of other models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.kernels.linear import Dense, Linear, make_linear, make_lookup
from pagemesh.kernels.linear.weight import Plain, RowStack
from pagemesh.kernels.packed_weights import place_packed
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.decoder import (
    AttentionInput,
    Decoder,
    Head,
    HeadTurn,
    Layer,
    NoHead,
    PlacedEmbedding,
    TokenEmbedding,
    make_embedding,
    make_head,
    make_layer_output,
)
from pagemesh.models.norms import NoNorm
from pagemesh.models.parameters import Parameters, ParameterScope
from pagemesh.models.rope import pair_rows, rotation_table
from pagemesh.models.spec import AttentionSpec, DecoderSpec, LayerSpec, RopeSpec


def assemble(spec: DecoderSpec, parameters: Parameters, max_model_len: int) -> Decoder:
    """A decoder for positions below `max_model_len`, on its parameters' device."""
    model = ParameterScope(parameters, "")
    table = _embedding_table(parameters)
    ropes = list(dict.fromkeys(layer.rope for layer in spec.layers if layer.rope is not None))
    layers = [
        _make_layer(spec, index, ropes, ParameterScope(parameters, f"layers.{index}."), table.dtype)
        for index in range(spec.num_layers)
    ]
    head_dim = spec.attention.head_dim
    head: Head = NoHead()
    if spec.has_head:
        output = table if spec.tie_word_embeddings else parameters.weight("lm_head")
        head = make_head(output, spec.logit_soft_cap)
    return Decoder(
        embedding=_make_embedding(spec, model, table),
        rotations=[
            make_lookup(Dense(rotation_table(rope, head_dim, max_model_len).to(parameters.device)))
            for rope in ropes
        ],
        layers=layers,
        final_norm=(
            NoNorm()
            if spec.residual == "normed_sums"
            else model.norm(spec.norm, "final_norm", table.dtype)
        ),
        head=head,
    )


def _embedding_table(parameters: Parameters) -> Plain:
    """Packed, as it would be for products."""
    table = parameters.weight("embed")
    if isinstance(table, RowStack):
        table = Dense(table.dense())
    return table.moved(place_packed)


def _make_embedding(spec: DecoderSpec, model: ParameterScope, table: Plain) -> TokenEmbedding:
    if spec.input is None:
        return make_embedding(table, spec.embedding_scale)
    token_types, positions = model.get("token_types"), model.get("positions")
    return PlacedEmbedding(
        table,
        None if token_types is None else token_types[0],
        None if positions is None else positions[spec.input.first_position :],
        model.norm(spec.norm, "embed_norm", table.dtype),
    )


def _make_layer(
    spec: DecoderSpec,
    index: int,
    ropes: Sequence[RopeSpec],
    scope: ParameterScope,
    dtype: torch.dtype,
) -> Layer:
    layer = spec.layers[index]
    attention_input = AttentionInput(
        index,
        spec.attention,
        (
            scope.norm(spec.norm, "attention_norm", dtype)
            if layer.norms_input and spec.residual != "normed_sums"
            else NoNorm()
        ),
        _make_qkv(spec.attention, layer.rope, scope),
        _make_turn(spec, layer, ropes, scope),
    )
    return Layer(attention_input, make_layer_output(spec, layer, scope, dtype))


def _make_qkv(attention: AttentionSpec, rope: RopeSpec | None, scope: ParameterScope) -> Linear:
    weight, bias = scope.weight("qkv.weight"), scope.get("qkv.bias")
    if rope is not None:
        num_heads = attention.num_heads + attention.num_kv_heads
        order = torch.arange(weight.shape[0], device=weight.device)
        turned = order[: num_heads * attention.head_dim]
        turned.copy_(pair_rows(turned, num_heads, rope.rotary_dim))
        weight = weight.take_rows(order)
        bias = None if bias is None else bias.index_select(0, order)
    return make_linear(weight, bias)


def _make_turn(
    spec: DecoderSpec, layer: LayerSpec, ropes: Sequence[RopeSpec], scope: ParameterScope
) -> HeadTurn | None:
    if layer.rope is None:
        return None
    rope = ropes.index(layer.rope)
    if not spec.attention.head_norm:
        return HeadTurn(rope)
    weights = [
        pair_rows(scope.read(name), 1, layer.rope.rotary_dim).expand(num_heads, -1)
        for name, num_heads in (
            ("q_norm.weight", spec.attention.num_heads),
            ("k_norm.weight", spec.attention.num_kv_heads),
        )
    ]
    return HeadTurn(rope, torch.cat(weights), spec.norm.eps)


def make_layer_attention(spec: DecoderSpec, parameters: Parameters) -> list[LayerAttention]:
    """How each layer attends; layers that attend alike share one."""
    attention = spec.attention
    slopes = None
    if attention.alibi_slopes:
        slopes = torch.tensor(attention.alibi_slopes, device=parameters.device)
    shared: dict[tuple[int | None, int | None], LayerAttention] = {}
    made = []
    for index, layer in enumerate(spec.layers):
        key = (layer.sliding_window, index if attention.sinks else None)
        if key not in shared:
            shared[key] = LayerAttention(
                scale=attention.scale,
                sliding_window=layer.sliding_window,
                soft_cap=attention.soft_cap,
                sinks=parameters.get(f"layers.{index}.sinks"),
                alibi_slopes=slopes,
            )
        made.append(shared[key])
    return made
