"""Puts the second half of a layer together."""

from __future__ import annotations

import torch

from pagemesh.models.feed_forward import make_feed_forward
from pagemesh.models.norms import Norm
from pagemesh.models.parameters import Part
from pagemesh.models.residual import LayerOutput, NormedSums, Parallel, PostNorms, Sequential
from pagemesh.models.spec import DecoderSpec, LayerSpec


def make_layer_output(
    spec: DecoderSpec, layer: LayerSpec, part: Part, dtype: torch.dtype
) -> LayerOutput:
    """What follows attention, from the layer's parameters; `dtype` is the type of what is normed."""

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
        case "normed_sums":
            return NormedSums(output, norm("attention_norm"), mlp, norm("mlp_norm"))
