"""Llama: Hugging Face's config.json and weight names, mapped onto the decoder's spec."""

from __future__ import annotations

from typing import Final

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec, RopeSpec

ARCHITECTURE: Final = "LlamaForCausalLM"

_TOP_LEVEL: Final = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}
_LAYER_MODULES: Final = {
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def make_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' LlamaConfig."""
    config.require("hidden_act", ("silu",))
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    head_dim = config.integer("head_dim", max(hidden_size // num_heads, 1))
    if num_heads % num_kv_heads != 0:
        raise config.bad("num_key_value_heads", f"a divisor of num_attention_heads = {num_heads}")
    if head_dim % 2 != 0:
        raise config.bad("head_dim", f"even, because RoPE turns pairs; it came out as {head_dim}")
    max_position = config.integer("max_position_embeddings", 2048)
    return DecoderSpec(
        architecture=ARCHITECTURE,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_make_rope(config, max_position),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        max_position=max_position,
    )


def _make_rope(config: ConfigJson, max_position: int) -> RopeSpec:
    """Both spellings: `rope_parameters` (transformers 5), `rope_theta` with `rope_scaling` (before)."""
    rope = config.child("rope_parameters") or config.child("rope_scaling")
    default_theta = config.number("rope_theta", 10_000.0)
    if rope is None:
        return RopeSpec(theta=default_theta)
    kind_key = "rope_type" if rope.get("rope_type") is not None else "type"
    rope.require(kind_key, ("default", "linear", "llama3"))
    rope.require("partial_rotary_factor", (1.0,))
    theta = rope.number("rope_theta", default_theta)
    match rope.get(kind_key):
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=rope.number("factor"))
        case "llama3":
            original = rope.integer("original_max_position_embeddings", max_position)
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            if low >= high:
                raise rope.bad("low_freq_factor", f"less than high_freq_factor = {high}")
            return RopeSpec(
                theta=theta,
                kind="llama3",
                factor=rope.number("factor"),
                low_freq_factor=low,
                high_freq_factor=high,
                original_max_position=original,
            )
        case _:
            return RopeSpec(theta=theta)


def tensor_name(parameter: str) -> str:
    """The checkpoint's name of a parameter of `DecoderSpec.parameter_shapes`."""
    if parameter in _TOP_LEVEL:
        return _TOP_LEVEL[parameter]
    _, index, part = parameter.split(".", 2)
    module, _, kind = part.partition(".")
    suffix = f".{kind}" if kind else ""
    return f"model.layers.{index}.{_LAYER_MODULES[module]}{suffix}"


def is_redundant(name: str, spec: DecoderSpec) -> bool:
    """Whether a tensor repeats what the spec says: rotary tables, or the output head of a tied model."""
    return name.endswith(".rotary_emb.inv_freq") or (
        spec.tie_word_embeddings and name == _TOP_LEVEL["lm_head"]
    )
