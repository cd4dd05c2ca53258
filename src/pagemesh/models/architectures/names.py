"""Weight names that most architectures have in common: those of Llama in transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pagemesh.models.architectures.architecture import Convert, Source, stack_rows
from pagemesh.models.spec import DecoderSpec, MlpSpec, MoeSpec

if TYPE_CHECKING:
    import torch

NORMS: Final[Mapping[str, str]] = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
"""The spec's names of norms, and the checkpoint's."""


def plus_one(weight: torch.Tensor) -> torch.Tensor:
    """Gemma's norms multiply by 1 + weight."""
    return weight.float() + 1.0


def ends(spec: DecoderSpec, convert_norm: Convert | None = None) -> Iterator[Source]:
    """Embedding, final norm and, unless tied, the output projection."""
    table = (spec.vocab_size, spec.hidden_size)
    yield Source("model.embed_tokens.weight", table, "embed")
    yield Source(
        "model.norm.weight", (spec.hidden_size,), "final_norm.weight", convert=convert_norm
    )
    if not spec.tie_word_embeddings:
        yield Source("lm_head.weight", table, "lm_head")


def norms(
    spec: DecoderSpec,
    index: int,
    names: Mapping[str, str] = NORMS,
    convert: Convert | None = None,
) -> Iterator[Source]:
    """The norms of a layer."""
    for ours, theirs in names.items():
        yield Source(
            f"model.layers.{index}.{theirs}.weight",
            (spec.hidden_size,),
            f"layers.{index}.{ours}.weight",
            convert=convert,
        )


def split_attention(
    spec: DecoderSpec, index: int, convert_norm: Convert | None = None
) -> Iterator[Source]:
    """Query, key and value apart, the output projection, and the norms of heads."""
    attention = spec.attention
    ours, theirs = f"layers.{index}.", f"model.layers.{index}.self_attn."
    query = attention.num_heads * attention.head_dim
    key_value = attention.num_kv_heads * attention.head_dim
    rows = (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value))
    hidden = spec.hidden_size
    weights = [(f"{theirs}{name}.weight", num_rows) for name, num_rows in rows]
    yield from stack_rows(f"{ours}qkv.weight", weights, (hidden,))
    yield Source(f"{theirs}o_proj.weight", (hidden, query), f"{ours}o.weight")
    if attention.qkv_bias:
        biases = [(f"{theirs}{name}.bias", num_rows) for name, num_rows in rows]
        yield from stack_rows(f"{ours}qkv.bias", biases, ())
    if attention.o_bias:
        yield Source(f"{theirs}o_proj.bias", (hidden,), f"{ours}o.bias")
    if attention.head_norm:
        for name in ("q_norm.weight", "k_norm.weight"):
            yield Source(theirs + name, (attention.head_dim,), ours + name, convert=convert_norm)


def split_mlp(
    spec: DecoderSpec,
    mlp: MlpSpec,
    ours: str,
    theirs: str,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    leading: tuple[int, ...] = (),
) -> Iterator[Source]:
    """A gated MLP whose projections are apart; `leading` is the number of an expert."""
    gate, up, down = (f"{theirs}{name}" for name in names)
    size, hidden = mlp.intermediate_size, spec.hidden_size
    weights = [(f"{gate}.weight", size), (f"{up}.weight", size)]
    yield from stack_rows(f"{ours}up.weight", weights, (hidden,), leading)
    yield Source(f"{down}.weight", (hidden, size), f"{ours}down.weight", leading)
    if mlp.bias:
        biases = [(f"{gate}.bias", size), (f"{up}.bias", size)]
        yield from stack_rows(f"{ours}up.bias", biases, (), leading)
        yield Source(f"{down}.bias", (hidden,), f"{ours}down.bias", leading)


def split_feed_forward(spec: DecoderSpec, index: int) -> Iterator[Source]:
    """A layer's MLP, or Qwen's mixture of MLPs."""
    mlp = spec.layers[index].mlp
    ours, theirs = f"layers.{index}.", f"model.layers.{index}.mlp."
    if isinstance(mlp, MlpSpec):
        yield from split_mlp(spec, mlp, ours, theirs)
    else:
        yield from split_mixture(spec, mlp, ours, theirs)


def split_mixture(
    spec: DecoderSpec,
    moe: MoeSpec,
    ours: str,
    theirs: str,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Iterator[Source]:
    """A router, its experts one by one and, where there is one, the expert of all tokens."""
    router = (moe.num_experts, spec.hidden_size)
    yield Source(f"{theirs}gate.weight", router, f"{ours}router.weight")
    for number in range(moe.num_experts):
        expert = f"{theirs}experts.{number}."
        yield from split_mlp(spec, moe.expert, f"{ours}experts.", expert, names, (number,))
    if moe.shared is not None:
        yield from split_mlp(spec, moe.shared, f"{ours}shared.", f"{theirs}shared_expert.")
        gate = (1, spec.hidden_size)
        yield Source(f"{theirs}shared_expert_gate.weight", gate, f"{ours}shared_gate.weight")


def llama_sources(spec: DecoderSpec) -> Iterator[Source]:
    """All tensors of a checkpoint with the names of Llama or of Qwen's mixtures."""
    yield from ends(spec)
    for index in range(spec.num_layers):
        yield from norms(spec, index)
        yield from split_attention(spec, index)
        yield from split_feed_forward(spec, index)
