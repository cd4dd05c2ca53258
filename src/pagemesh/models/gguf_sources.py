"""Which tensor of a GGUF file becomes which parameter: the architectures' own rows under llama.cpp's names. No torch.

What llama.cpp's converter does to weights is undone here: rows of query and key in another order, norms with the 1 added
that Gemma's checkpoints leave out, experts in one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pagemesh.gguf.rope import FACTORS, FACTORS_LONG, FACTORS_SHORT
from pagemesh.models.architectures.architecture import Architecture, Convert, Source
from pagemesh.models.architectures.names import plus_one
from pagemesh.models.spec import DecoderSpec, MoeSpec
from pagemesh.models.tensor_files import TensorEntry

if TYPE_CHECKING:
    import torch

_OUTSIDE: Final[Mapping[str, str]] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
}

_IN_LAYER: Final[Mapping[str, str]] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn": "attn_sinks",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "attn_norm": "attn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
}

_BEHIND_ATTENTION: Final[Mapping[str, str]] = {"post_attention_layernorm": "post_attention_norm"}
"""Of architectures where llama.cpp calls this norm so: Gemma's has another in front of the MLP, gpt-oss's is it."""

_PROJECTIONS: Final[Mapping[str, str]] = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}

_LAYER: Final = re.compile(r"(?:model\.layers|encoder\.layer|layers)\.(\d+)\.(.+)\.(\w+)")
_EXPERT: Final = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)")
_STACKED_EXPERTS: Final = "mlp.experts"

_PERMUTED: Final = ("LlamaForCausalLM", "MixtralForCausalLM")
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    name: {**_IN_LAYER, **_BEHIND_ATTENTION}
    for name in ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "GptOssForCausalLM")
}


def gguf_sources(
    architecture: Architecture, spec: DecoderSpec, entries: Mapping[str, TensorEntry]
) -> list[Source]:
    """The tensors of a file with these entries; together they fill every parameter of the spec."""
    found: list[Source] = []
    for source in architecture.sources(spec):
        found += _rows(source, spec, entries)
    return [_of_one_row(source, entries) for source in found]


def may_ignore_in_gguf(tensor: str) -> bool:
    """Whether a tensor that no source names repeats what the spec says."""
    return tensor in (FACTORS, FACTORS_LONG, FACTORS_SHORT) or tensor.endswith(
        ".attn_rot_embd.weight"
    )


def _rows(source: Source, spec: DecoderSpec, tensors: Collection[str]) -> Iterator[Source]:
    match = _LAYER.fullmatch(source.tensor)
    if match is None:
        part, _, kind = source.tensor.rpartition(".")
        yield source._replace(
            tensor=f"{_OUTSIDE[part]}.{kind}", convert=_convert(source, spec, part)
        )
        return
    layer, part, kind = match.groups()
    expert = _EXPERT.fullmatch(part)
    if expert is not None:
        name = f"blk.{layer}.{_PROJECTIONS[expert[2]]}"
        yield from _expert(source, spec, int(layer), int(expert[1]), name, tensors)
    elif part == _STACKED_EXPERTS:
        yield from _stacked_experts(source, f"blk.{layer}.", kind)
    else:
        name = _NAMES.get(spec.architecture, _IN_LAYER)[part]
        ending = "weight" if kind == "sinks" else kind
        yield source._replace(
            tensor=f"blk.{layer}.{name}.{ending}",
            convert=_convert(source, spec, part),
        )


def _of_one_row(source: Source, entries: Mapping[str, TensorEntry]) -> Source:
    """A table or matrix of one row often comes without its first dimension."""
    entry = entries.get(source.tensor)
    rows, *row = source.shape
    if entry is None or rows != 1 or entry.shape != tuple(row):
        return source
    return source._replace(shape=entry.shape)


def _convert(source: Source, spec: DecoderSpec, part: str) -> Convert | None:
    if source.convert is plus_one:
        return None
    attention = spec.attention
    heads = {"self_attn.q_proj": attention.num_heads, "self_attn.k_proj": attention.num_kv_heads}
    if spec.architecture in _PERMUTED and part in heads:
        return partial(_halves_apart, heads[part])
    return source.convert


def _halves_apart(num_heads: int, rows: torch.Tensor) -> torch.Tensor:
    """Rows of heads whose pairs for RoPE stand together, as ggml wants them, in two halves, as transformers does."""
    pairs = rows.view(num_heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _expert(
    source: Source,
    spec: DecoderSpec,
    layer: int,
    number: int,
    name: str,
    tensors: Collection[str],
) -> Iterator[Source]:
    """Each expert in a tensor of its own, or all of a layer in one, which the first one's row stands for."""
    alone = f"{name}.{number}.weight"
    if alone in tensors:
        yield source._replace(tensor=alone)
    elif number == 0:
        moe = spec.layers[layer].mlp
        assert isinstance(moe, MoeSpec)
        yield source._replace(
            tensor=f"{name}_exps.weight",
            shape=(moe.num_experts, *source.shape),
            place=(slice(None), *source.place[1:]),
        )


def _stacked_experts(source: Source, layer: str, kind: str) -> Iterator[Source]:
    """gpt-oss's: in its checkpoints gates and ups alternate and matrices are transposed, here they are not."""
    ending = "bias" if kind.endswith("_bias") else "weight"
    experts, *sizes = source.shape
    # [experts, in, out] of matrices, [experts, out] of biases.
    *columns, rows = sizes
    if kind.startswith("down"):
        yield Source(f"{layer}ffn_down_exps.{ending}", (experts, rows, *columns), source.parameter)
        return
    half = rows // 2
    for name, place in (("gate", slice(0, half)), ("up", slice(half, rows))):
        yield Source(
            f"{layer}ffn_{name}_exps.{ending}",
            (experts, half, *columns),
            source.parameter,
            (slice(None), place),
        )
