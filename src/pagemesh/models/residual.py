"""The second half of a layer, put together by how attention and MLP are joined to the residual stream."""

from __future__ import annotations

from typing import Protocol

import torch

from pagemesh.kernels.linear import Linear
from pagemesh.models.feed_forward import FeedForward, make_feed_forward
from pagemesh.models.norms import Norm
from pagemesh.models.parameters import ParameterScope
from pagemesh.models.spec import DecoderSpec, LayerSpec


def make_layer_output(
    spec: DecoderSpec, layer: LayerSpec, scope: ParameterScope, dtype: torch.dtype
) -> LayerOutput:
    """What follows attention, from the layer's parameters; `dtype` is the type of what is normed."""

    def norm(name: str) -> Norm:
        return scope.norm(spec.norm, name, dtype)

    output = scope.linear("o")
    mlp = make_feed_forward(layer.mlp, scope)
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


class LayerOutput(Protocol):
    """What follows attention."""

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output [R, hidden] from its input and the attended heads [R, heads · head_dim]."""
        ...


class Sequential:
    """Attention is added, then the MLP of the normed sum."""

    def __init__(self, output: Linear, norm: Norm, mlp: FeedForward) -> None:
        self._output = output
        self._norm = norm
        self._mlp = mlp

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = self._output.add_to(hidden, attended)
        return self._mlp.add_to(hidden, self._norm.apply(hidden))


class PostNorms:
    """The same with a norm of what is added, before it is added (Gemma 2)."""

    def __init__(
        self,
        output: Linear,
        norm: Norm,
        mlp: FeedForward,
        post_norms: tuple[Norm, Norm],
    ) -> None:
        """`post_norms` are attention's and the MLP's."""
        self._output = output
        self._norm = norm
        self._mlp = mlp
        self._attention_post_norm, self._mlp_post_norm = post_norms

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = self._attention_post_norm.add_to(hidden, self._output(attended))
        return self._mlp_post_norm.add_to(hidden, self._mlp.compute(self._norm.apply(hidden)))


class NormedSums:
    """Attention is added and the sum normed, then the MLP of that, likewise (Vaswani et al. 2017,
    https://arxiv.org/abs/1706.03762)."""

    def __init__(
        self, output: Linear, attention_norm: Norm, mlp: FeedForward, mlp_norm: Norm
    ) -> None:
        self._output = output
        self._attention_norm = attention_norm
        self._mlp = mlp
        self._mlp_norm = mlp_norm

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = self._attention_norm.apply(self._output.add_to(hidden, attended))
        return self._mlp_norm.apply(self._mlp.add_to(hidden, hidden))


class Parallel:
    """Attention and MLP read the same input, normed by one norm or by two, and are added together.

    With one norm it is computed a second time here: one call, instead of one more tensor that has to be
    carried past attention and cut to the rows that are asked for.
    """

    def __init__(self, output: Linear, norm: Norm, mlp: FeedForward) -> None:
        self._output = output
        self._norm = norm
        self._mlp = mlp

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return self._mlp.add_to(self._output.add_to(hidden, attended), self._norm.apply(hidden))
