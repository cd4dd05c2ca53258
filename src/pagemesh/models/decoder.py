"""The forward pass of a decoder, for any mixture of sequences laid out as one flat run of tokens, and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from pagemesh.errors import InternalError
from pagemesh.kernels.linear import (
    Linear,
    Lookup,
    StepwiseSumNorm,
    Summed,
    SumNorm,
    Weight,
    make_linear,
    make_lookup,
    make_normed_product,
)
from pagemesh.kernels.linear.weight import Plain
from pagemesh.kernels.rms_norm import NormedRows
from pagemesh.kernels.write_kv import Turn
from pagemesh.models.feed_forward import FeedForward, Mlp, make_feed_forward
from pagemesh.models.interface import ForwardContext
from pagemesh.models.norms import Norm
from pagemesh.models.parameters import ParameterScope
from pagemesh.models.spec import AttentionSpec, DecoderSpec, LayerSpec


class TokenEmbedding(Protocol):
    """From token ids to hidden states."""

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T, hidden] of two int64 [T]."""
        ...


class Embedding:
    """Looks tokens up."""

    def __init__(self, table: Plain) -> None:
        """`table` is [vocab, hidden]."""
        self._rows = make_lookup(table)

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._rows(token_ids)


class ScaledEmbedding:
    """Looks tokens up and scales them.

    Scaled at every step, because the table itself is also the output projection.
    """

    def __init__(self, table: Plain, scale: float) -> None:
        """The scale is rounded to the table's type first, as the models were trained (Gemma)."""
        self._rows = make_lookup(table)
        self._scale = torch.tensor(scale, dtype=table.dtype, device=table.device)

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._rows(token_ids).mul_(self._scale)


class PlacedEmbedding:
    """Looks tokens up, adds what all tokens have and what each position has, and norms the sum (BERT)."""

    def __init__(
        self,
        table: Plain,
        token_type: torch.Tensor | None,
        position_table: torch.Tensor | None,
        norm: Norm,
    ) -> None:
        """`token_type` is [hidden], `position_table` [positions, hidden] from the first position on."""
        self._rows = make_lookup(table)
        self._token_type = token_type
        self._position_table = position_table
        self._norm = norm

    def look_up(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = self._rows(token_ids)
        if self._token_type is not None:
            hidden += self._token_type
        if self._position_table is not None:
            hidden += functional.embedding(positions, self._position_table)
        return self._norm(hidden)


class Head(Protocol):
    """From normed hidden states to logits."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, vocab] of [R, hidden], in the model's own type."""
        ...


class LinearHead:
    """One projection."""

    def __init__(self, projection: Linear) -> None:
        """`projection` gives a logit for each token id."""
        self._projection = projection

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._projection(hidden)


class NoHead:
    """Of models that make embeddings only."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Head`; never asked for, because requests for tokens are refused."""
        raise InternalError("the model has no output head")


class CappedHead:
    """A projection whose logits stay between ± cap."""

    def __init__(self, projection: Linear, cap: float) -> None:
        """`projection` gives a logit for each token id."""
        self._projection = projection
        self._cap = cap

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._projection(hidden).div_(self._cap).tanh_().mul_(self._cap)


def make_embedding(table: Plain, scale: float) -> TokenEmbedding:
    """The one that fits; `table` is [vocab, hidden]."""
    return Embedding(table) if scale == 1.0 else ScaledEmbedding(table, scale)


def make_head(weight: Weight, soft_cap: float | None) -> Head:
    """The one that fits; `weight` is [vocab, hidden]."""
    projection = make_linear(weight)
    return LinearHead(projection) if soft_cap is None else CappedHead(projection, soft_cap)


@dataclass(frozen=True, slots=True)
class HeadTurn:
    """How a layer turns query and key heads: RoPE, with or without a norm of the heads."""

    rope: int
    """Number of the layer's RoPE in the model."""

    norm_weight: torch.Tensor | None = None
    """See `Turn`."""

    norm_eps: float = 0.0

    def of(self, rotations: Sequence[torch.Tensor]) -> Turn:
        """That of a step; `rotations` are those of its positions, one for each RoPE of the model, complex64 [T,
        head_dim / 2]."""
        return Turn(rotations[self.rope], self.norm_weight, self.norm_eps)


class AttentionInput:
    """Norm, the fused projection to queries, keys and values, and how their heads are turned."""

    def __init__(
        self,
        layer: int,
        spec: AttentionSpec,
        norm: Norm,
        projection: Linear,
        turn: HeadTurn | None,
    ) -> None:
        """`projection` gives queries, keys and values; those that are turned in pairs, see `rope`. Without a turn
        positions enter through the attention."""
        self._layer = layer
        self._num_heads = spec.num_heads
        self._num_all = spec.num_heads + 2 * spec.num_kv_heads
        self._head_dim = spec.head_dim
        self.norm, self._multiply = make_normed_product(norm, projection)
        self._turn = turn

    def project(
        self, normed: NormedRows, rotations: Sequence[torch.Tensor], attention: ForwardContext
    ) -> torch.Tensor:
        """Queries [T, heads, head_dim] of hidden states as `norm` gives them."""
        qkv = self._multiply(normed)
        heads = qkv.view(-1, self._num_all, self._head_dim)
        turn = None if self._turn is None else self._turn.of(rotations)
        attention.write(self._layer, heads, turn)
        return heads[:, : self._num_heads]


def make_layer_output(
    spec: DecoderSpec, layer: LayerSpec, scope: ParameterScope, dtype: torch.dtype
) -> LayerOutput:
    """What follows attention, from the layer's parameters; `dtype` is the type of what is normed."""

    def norm(name: str) -> Norm:
        return scope.norm(spec.norm, name, dtype)

    output = scope.linear("o")
    mlp = make_feed_forward(layer.mlp, scope)
    match spec.residual:
        case "sequential" if isinstance(mlp, Mlp):
            return SequentialMlp(output, norm("mlp_norm"), mlp)
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

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor, following: SumNorm) -> Summed:
        """The layer's output [R, hidden] from its input and the attended heads [R, heads · head_dim], and the same
        normed for what follows."""
        ...


class SequentialMlp:
    """Attention is added, then the MLP of the normed sum."""

    def __init__(self, output: Linear, norm: Norm, mlp: Mlp) -> None:
        self._output = output
        self._norm, self._expand = make_normed_product(norm, mlp.expand)
        self._down = mlp.down

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor, following: SumNorm) -> Summed:
        hidden, normed = self._norm.of_sum(self._output, hidden, attended)
        return following.of_sum(self._down, hidden, self._expand(normed))


class Sequential:
    """The same with a mixture."""

    def __init__(self, output: Linear, norm: Norm, mlp: FeedForward) -> None:
        self._output = output
        self._norm = norm
        self._mlp = mlp

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor, following: SumNorm) -> Summed:
        hidden = self._output.add_to(hidden, attended)
        hidden = self._mlp.add_to(hidden, self._norm(hidden))
        return hidden, following(hidden)


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

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor, following: SumNorm) -> Summed:
        hidden = self._attention_post_norm.add_to(hidden, self._output(attended))
        hidden = self._mlp_post_norm.add_to(hidden, self._mlp.compute(self._norm(hidden)))
        return hidden, following(hidden)


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

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor, following: SumNorm) -> Summed:
        hidden = self._attention_norm(self._output.add_to(hidden, attended))
        hidden = self._mlp_norm(self._mlp.add_to(hidden, hidden))
        return hidden, following(hidden)


class Parallel:
    """Attention and MLP read the same input, normed by one norm or by two, and are added together.

    With one norm it is computed a second time here: one call, instead of one more tensor that has to be
    carried past attention and cut to the rows that are asked for.
    """

    def __init__(self, output: Linear, norm: Norm, mlp: FeedForward) -> None:
        self._output = output
        self._norm = norm
        self._mlp = mlp

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor, following: SumNorm) -> Summed:
        hidden = self._mlp.add_to(self._output.add_to(hidden, attended), self._norm(hidden))
        return hidden, following(hidden)


class Layer(NamedTuple):
    """One layer, put together from its parts when the model is loaded."""

    input: AttentionInput
    output: LayerOutput


class Decoder:
    """A `CausalModel` of layers that are all in memory."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        rotations: Sequence[Lookup],
        layers: Sequence[Layer],
        final_norm: Norm,
        head: Head,
    ) -> None:
        """`rotations` look positions up, in a table for each RoPE of the model, see `rotation_table`."""
        self._embedding = embedding
        self._rotations = rotations
        self._layers = layers
        self._final_norm = final_norm
        self._last = StepwiseSumNorm(final_norm)
        following: list[SumNorm] = [*(layer.input.norm for layer in layers[1:]), self._last]
        self._steps = list(zip(layers, following, strict=True))
        self._head = head

    def first_layers(self, number: int) -> Decoder:
        """Of the same tensors, another decoder that leaves the other layers out."""
        layers = self._layers[:number]
        return Decoder(self._embedding, self._rotations, layers, self._final_norm, self._head)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: ForwardContext,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `CausalModel`; the hidden states are normed."""
        return self.run_layers(self.enter(token_ids, positions), attention, rows)

    def enter(self, token_ids: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        """What the layers begin with: hidden states [T, hidden], and a rotation of the positions, [T, head_dim
        / 2], for each RoPE of the model."""
        hidden = self._embedding.look_up(token_ids, positions)
        return [hidden, *(look_up(positions) for look_up in self._rotations)]

    def run_layers(
        self, entered: Sequence[torch.Tensor], attention: ForwardContext, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """The rest of `forward`. What was entered stays as it is."""
        hidden, *rotations = entered
        normed = self._layers[0].input.norm(hidden)
        for index, (layer, following) in enumerate(self._steps):
            query = layer.input.project(normed, rotations, attention)
            del normed  # which nobody else reads: a long step needs the memory
            picked = rows if following is self._last else None
            if picked is not None and not picked.numel():
                return hidden[:0]
            attended = attention.attend(index, query).flatten(1)
            if picked is not None:
                # Nothing reads the other tokens' hidden states any more, only their KV.
                attended, hidden = attended.index_select(0, picked), hidden.index_select(0, picked)
            hidden, normed = layer.output.finish(hidden, attended, following)
        assert isinstance(normed, torch.Tensor)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head.logits(hidden)
