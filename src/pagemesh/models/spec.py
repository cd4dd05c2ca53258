"""What a decoder is made of, as plain data: the meeting point of architectures, weights and forward pass.

An encoder is a decoder whose tokens see those behind them as well.
Imports no tensors, so that a folder can be judged, and its memory planned, from config.json alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "geglu", "gelu_tanh", "clamped_swiglu"]
Residual = Literal["sequential", "post_norms", "parallel", "parallel_two_norms", "normed_sums"]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of the first `rotary_dim` dimensions of each head."""

    theta: float
    """Base of the geometric series of frequencies."""

    rotary_dim: int
    """Even; the dimensions of a head behind them carry no position."""

    kind: RopeKind = "default"
    """How the frequencies are stretched for contexts longer than those first trained on."""

    factor: float = 1.0
    """All but default and longrope: how much longer the context became."""

    original_max_position: int = 0
    """dynamic, llama3, yarn, longrope: context length before stretching, in tokens."""

    low_freq_factor: float = 1.0
    """llama3: wavelengths above original_max_position / this are stretched by the whole factor."""

    high_freq_factor: float = 4.0
    """llama3: wavelengths below original_max_position / this stay as they are."""

    beta_fast: float = 32.0
    """yarn: frequencies that turn more often than this over the original context stay as they are."""

    beta_slow: float = 1.0
    """yarn: frequencies that turn less often than this are stretched by the whole factor."""

    truncate: bool = True
    """yarn: whether the bounds that follow from the betas are rounded to whole dimensions."""

    short_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency for contexts up to `original_max_position`."""

    long_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency for longer contexts."""

    attention_factor: float = 1.0
    """yarn and longrope: queries and keys become longer by this factor."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What is added to the embeddings before the first layer; the sum is normed (BERT)."""

    num_positions: int = 0
    """Rows of the table of learned positions; 0 for none."""

    first_position: int = 0
    """The row of a prompt's first token (RoBERTa keeps some for padding)."""

    num_token_types: int = 0
    """Rows of the table of token types, of which all tokens have the first; 0 for none."""


@dataclass(frozen=True, slots=True)
class NormSpec:
    """All norms over the hidden size; the norms of heads are always RMSNorm with the same epsilon."""

    kind: NormKind
    eps: float

    bias: bool = True
    """Whether a LayerNorm has one."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What all layers' attention has in common."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor of the products of queries and keys."""

    qkv_bias: bool = False
    o_bias: bool = False

    head_norm: bool = False
    """Whether every query and key head is normed before it is turned (Qwen 3, Gemma 3)."""

    soft_cap: float | None = None
    """See `LayerAttention.soft_cap`."""

    sinks: bool = False
    """Whether there is one learned sink per head; see `LayerAttention.sinks`."""

    alibi_slopes: tuple[float, ...] = ()
    """One per head, see `LayerAttention.alibi_slopes`; empty without ALiBi."""


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Two projections with an activation between them; gated: down(activation(gate(x)) * up(x))."""

    intermediate_size: int
    activation: Activation = "silu"
    """gelu stands alone, the others have a gate. clamped_swiglu is that of GPT-OSS:
    (up + 1) · gate · sigmoid(alpha · gate), both clamped first."""

    bias: bool = False
    limit: float = 0.0
    """clamped_swiglu: gate is at most this, up between ± this."""

    alpha: float = 1.0
    """clamped_swiglu: gain of the sigmoid."""

    @property
    def gated(self) -> bool:
        """Whether the first projection gives a gate as well."""
        return self.activation != "gelu"


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A router, experts of which each token uses the best few, and perhaps one expert that all use."""

    num_experts: int
    num_experts_per_token: int
    expert: MlpSpec
    normalize: bool
    """Whether the weights of the chosen experts sum to 1, or are their share among all experts."""

    router_bias: bool = False
    shared: MlpSpec | None = None
    """The expert of all tokens; its output is weighted by a sigmoid of its own projection of the token."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    mlp: MlpSpec | MoeSpec
    rope: RopeSpec | None
    """None when positions enter through the attention (ALiBi)."""

    sliding_window: int | None = None
    """See `LayerAttention.sliding_window`."""

    norms_input: bool = True
    """Whether there is a norm in front of attention, where the model has norms there."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder as a whole."""

    architecture: str
    """Name in config.json, for example "LlamaForCausalLM"."""

    vocab_size: int
    hidden_size: int
    norm: NormSpec
    attention: AttentionSpec
    layers: tuple[LayerSpec, ...]
    tie_word_embeddings: bool
    """Whether the output projection is the embedding table."""

    max_position: int
    """Context in tokens that the model has unless more is asked for."""

    longest_position: int
    """Longest context that may be asked for: larger where frequencies can be stretched further."""

    residual: Residual = "sequential"
    """Where norms stand and what is added when: attention then MLP, the same with a second norm behind
    each (Gemma), both side by side behind one norm or two (Falcon), or attention then MLP with norms of
    the sums instead, and so none behind the last layer (BERT)."""

    embedding_scale: float = 1.0
    """Factor of the embeddings at the input."""

    logit_soft_cap: float | None = None
    """Logits x become cap · tanh(x / cap)."""

    has_head: bool = True
    """Whether logits can be made of the hidden states; without a head, it makes embeddings only."""

    causal: bool = True
    """Whether a token sees those in front of it alone, or all of its prompt."""

    input: InputSpec | None = None
    """None when the embeddings are the first layer's input."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def parameter_shapes(self) -> Shapes:
        """Shape of every parameter: projections as [out, in], biases and norms flat.

        The names are "embed", "positions", "token_types", "embed_norm.weight", "lm_head" (unless tied),
        "final_norm.weight" and "layers.{i}.{part}"; the parts are those of `layer_shapes`.
        """
        shapes: Shapes = {"embed": (self.vocab_size, self.hidden_size)}
        if self.input is not None:
            if self.input.num_positions:
                shapes["positions"] = (self.input.num_positions, self.hidden_size)
            if self.input.num_token_types:
                shapes["token_types"] = (self.input.num_token_types, self.hidden_size)
            shapes |= self._norm_shapes("embed_norm")
        if self.residual != "normed_sums":
            shapes |= self._norm_shapes("final_norm")
        if not self.tie_word_embeddings:
            shapes["lm_head"] = (self.vocab_size, self.hidden_size)
        for index in range(self.num_layers):
            layer = self.layer_shapes(index)
            shapes.update({f"layers.{index}.{part}": shape for part, shape in layer.items()})
        return shapes

    def layer_shapes(self, index: int) -> Shapes:
        """Shape of every parameter of one layer; query, key and value are one, so are gate and up."""
        shapes = self._attention_shapes()
        if self.layers[index].norms_input:
            shapes |= self._norm_shapes("attention_norm")
        if self.residual != "parallel":
            shapes |= self._norm_shapes("mlp_norm")
        if self.residual == "post_norms":
            shapes |= self._norm_shapes("attention_post_norm") | self._norm_shapes("mlp_post_norm")
        mlp = self.layers[index].mlp
        if isinstance(mlp, MoeSpec):
            return shapes | self._moe_shapes(mlp)
        return shapes | _mlp_shapes(mlp, self.hidden_size, "", ())

    def num_active_weights(self, index: int) -> int:
        """Weights of a layer that one token is multiplied with."""
        total = sum(map(prod, self.layer_shapes(index).values()))
        mlp = self.layers[index].mlp
        if not isinstance(mlp, MoeSpec):
            return total
        expert = sum(map(prod, _mlp_shapes(mlp.expert, self.hidden_size, "", ()).values()))
        return total - (mlp.num_experts - mlp.num_experts_per_token) * expert

    def _norm_shapes(self, name: str) -> Shapes:
        has_bias = self.norm.kind == "layer" and self.norm.bias
        kinds = ("weight", "bias") if has_bias else ("weight",)
        return {f"{name}.{kind}": (self.hidden_size,) for kind in kinds}

    def _attention_shapes(self) -> Shapes:
        attention = self.attention
        query = attention.num_heads * attention.head_dim
        fused = query + 2 * attention.num_kv_heads * attention.head_dim
        shapes: Shapes = {
            "qkv.weight": (fused, self.hidden_size),
            "o.weight": (self.hidden_size, query),
        }
        if attention.qkv_bias:
            shapes["qkv.bias"] = (fused,)
        if attention.o_bias:
            shapes["o.bias"] = (self.hidden_size,)
        if attention.head_norm:
            shapes["q_norm.weight"] = shapes["k_norm.weight"] = (attention.head_dim,)
        if attention.sinks:
            shapes["sinks"] = (attention.num_heads,)
        return shapes

    def _moe_shapes(self, moe: MoeSpec) -> Shapes:
        shapes: Shapes = {"router.weight": (moe.num_experts, self.hidden_size)}
        if moe.router_bias:
            shapes["router.bias"] = (moe.num_experts,)
        shapes |= _mlp_shapes(moe.expert, self.hidden_size, "experts.", (moe.num_experts,))
        if moe.shared is not None:
            shapes |= _mlp_shapes(moe.shared, self.hidden_size, "shared.", ())
            shapes["shared_gate.weight"] = (1, self.hidden_size)
        return shapes


def _mlp_shapes(mlp: MlpSpec, hidden_size: int, prefix: str, leading: tuple[int, ...]) -> Shapes:
    up = mlp.intermediate_size * (2 if mlp.gated else 1)
    shapes: Shapes = {
        f"{prefix}up.weight": (*leading, up, hidden_size),
        f"{prefix}down.weight": (*leading, hidden_size, mlp.intermediate_size),
    }
    if mlp.bias:
        shapes[f"{prefix}up.bias"] = (*leading, up)
        shapes[f"{prefix}down.bias"] = (*leading, hidden_size)
    return shapes
