"""Puts a decoder together: from a spec and its parameters to parts that know nothing of other models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.kernels.linear import Linear, make_linear
from pagemesh.kernels.rope import make_rotation
from pagemesh.models.attention_input import AttentionInput
from pagemesh.models.decoder import Decoder, Layer
from pagemesh.models.feed_forward import make_feed_forward
from pagemesh.models.heads import HeadTransform, Keep, Rotate
from pagemesh.models.norms import Norm
from pagemesh.models.parameters import Parameters, Part
from pagemesh.models.residual import LayerOutput, Parallel, PostNorms, Sequential
from pagemesh.models.rope import pair_rows, rotation_table
from pagemesh.models.spec import AttentionSpec, DecoderSpec, LayerSpec, RopeSpec
from pagemesh.models.vocabulary import Head, NoHead, make_embedding, make_head

_DEVICE = torch.device("cpu")


def assemble(
    spec: DecoderSpec, parameters: Parameters, max_model_len: int, *, has_head: bool = True
) -> Decoder:
    """A decoder for positions below `max_model_len`; without a head, it makes hidden states only."""
    embed = parameters.read("embed")
    ropes = list(dict.fromkeys(layer.rope for layer in spec.layers if layer.rope is not None))
    layers = [
        _make_layer(spec, index, ropes, Part(parameters, f"layers.{index}."), embed.dtype)
        for index in range(spec.num_layers)
    ]
    head: Head = NoHead()
    if has_head:
        output = parameters.get("lm_head")
        head = make_head(embed if output is None else output, spec.logit_soft_cap)
    return Decoder(
        embedding=make_embedding(embed, spec.embedding_scale),
        rotations=[rotation_table(rope, spec.attention.head_dim, max_model_len) for rope in ropes],
        layers=layers,
        final_norm=Part(parameters, "").norm(spec.norm, "final_norm", embed.dtype),
        head=head,
    )


def _make_layer(
    spec: DecoderSpec, index: int, ropes: Sequence[RopeSpec], part: Part, dtype: torch.dtype
) -> Layer:
    layer = spec.layers[index]
    attention_input = AttentionInput(
        index,
        spec.attention,
        part.norm(spec.norm, "attention_norm", dtype),
        _make_qkv(spec.attention, layer.rope, part),
        _make_transform(spec, layer, ropes, part),
    )
    return Layer(attention_input, _make_output(spec, layer, part, dtype))


def _make_qkv(attention: AttentionSpec, rope: RopeSpec | None, part: Part) -> Linear:
    weight, bias = part.read("qkv.weight"), part.get("qkv.bias")
    if rope is not None:
        num_heads = attention.num_heads + attention.num_kv_heads
        for parameter in (weight, bias):
            if parameter is not None:
                turned = parameter[: num_heads * attention.head_dim]
                turned.copy_(pair_rows(turned, num_heads, rope.rotary_dim))
    return make_linear(weight, bias)


def _make_transform(
    spec: DecoderSpec, layer: LayerSpec, ropes: Sequence[RopeSpec], part: Part
) -> HeadTransform:
    if layer.rope is None:
        return Keep()
    rope = ropes.index(layer.rope)
    if not spec.attention.head_norm:
        return Rotate(rope, make_rotation(_DEVICE))
    weights = [
        pair_rows(part.read(name), 1, layer.rope.rotary_dim).expand(num_heads, -1)
        for name, num_heads in (
            ("q_norm.weight", spec.attention.num_heads),
            ("k_norm.weight", spec.attention.num_kv_heads),
        )
    ]
    return Rotate(rope, make_rotation(_DEVICE, torch.cat(weights), spec.norm.eps))


def _make_output(
    spec: DecoderSpec, layer: LayerSpec, part: Part, dtype: torch.dtype
) -> LayerOutput:
    def norm(name: str) -> Norm:
        return part.norm(spec.norm, name, dtype)

    output = part.linear("o")
    mlp = make_feed_forward(layer.mlp, part)
    match spec.residual:
        case "sequential":
            return Sequential(output, norm("mlp_norm"), mlp)
        case "post_norms":
            post_norms = norm("attention_post_norm"), norm("mlp_post_norm")
            return PostNorms(output, norm("mlp_norm"), mlp, post_norms)
        case "parallel":
            return Parallel(output, norm("attention_norm"), mlp)
        case "parallel_two_norms":
            return Parallel(output, norm("mlp_norm"), mlp)
