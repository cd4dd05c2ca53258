"""RoPE's settings out of a GGUF file, as `rope_parameters` of config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pagemesh.errors import ConfigError
from pagemesh.gguf.keys import Keys

FACTORS: Final = "rope_freqs.weight"
"""A factor for each frequency: how llama.cpp has the scaling of Llama 3."""

FACTORS_LONG: Final = "rope_factors_long.weight"
FACTORS_SHORT: Final = "rope_factors_short.weight"
"""Those of LongRoPE, for contexts beyond the original one and within it."""

_ORIGINAL: Final = "rope.scaling.original_context_length"

_DEFAULT_BASE: Final = 10_000.0
_LOCAL_BASE: Final = 10_000.0
_WITH_LOCAL: Final = ("Gemma3ForCausalLM", "ModernBertModel")
"""Whose layers with windows have a RoPE of their own."""


def rope_settings(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """The one RoPE of all layers, or two by the types of layers."""
    head_dim: int = config["head_dim"]
    dimensions = keys.integer("rope.dimension_count", head_dim)
    settings = {
        "rope_theta": keys.number("rope.freq_base", _DEFAULT_BASE),
        "partial_rotary_factor": dimensions / max(head_dim, 1),
        **_scaling(keys, config, dimensions),
    }
    if config["architectures"][0] in _WITH_LOCAL:
        local = keys.number("rope.freq_base_swa", _LOCAL_BASE)
        return {
            "full_attention": settings,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
    return settings


def _scaling(keys: Keys, config: Mapping[str, Any], dimensions: int) -> dict[str, Any]:
    tensors = keys.model.tensors
    kind = keys.text("rope.scaling.type") or "none"
    # Before there was a kind, a factor alone was linear.
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "none" and factor not in (0.0, 1.0):
        kind = "linear"
    has_factors = [name for name in (FACTORS, FACTORS_LONG, FACTORS_SHORT) if name in tensors]
    if has_factors and kind not in ("none", "longrope"):
        raise keys.bad("rope.scaling.type", f"absent beside the tensor {has_factors[0]}")
    if has_factors:
        return _of_factors(keys, config, dimensions)
    # Read whatever the kind: Phi-3's converter writes it where nothing is stretched, too.
    original = _original_context(keys, config)
    match kind:
        case "none":
            if original < config["max_position_embeddings"]:
                least = f"at least {config['max_position_embeddings']}"
                raise keys.bad(_ORIGINAL, f"{least}, since nothing says how contexts became longer")
            return {"rope_type": "default"}
        case "linear":
            return {"rope_type": "linear", "factor": factor}
        case "yarn":
            return _yarn(keys, config, factor)
    raise keys.bad("rope.scaling.type", "none, linear, yarn or, with its factors, longrope")


def _original_context(keys: Keys, config: Mapping[str, Any]) -> int:
    """Longest context before it was stretched, in tokens."""
    context: int = config["max_position_embeddings"]
    return keys.integer(_ORIGINAL, context) or context


def _yarn(keys: Keys, config: Mapping[str, Any], factor: float) -> dict[str, Any]:
    keys.require("rope.scaling.yarn_ext_factor", (1.0, -1.0))
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"):
        keys.require(key, (1.0,))
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _original_context(keys, config),
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        # The published model's own, which no key says.
        "truncate": config["architectures"] != ["GptOssForCausalLM"],
    }


def _of_factors(keys: Keys, config: Mapping[str, Any], dimensions: int) -> dict[str, Any]:
    """LongRoPE has a factor for each frequency: those of Llama 3 are the same whatever the context."""
    tensors = keys.model.tensors
    one_kind = FACTORS in tensors
    names = (FACTORS, FACTORS) if one_kind else (FACTORS_SHORT, FACTORS_LONG)
    short, long = (_numbers(keys, name, dimensions // 2) for name in names)
    settings: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": _original_context(keys, config),
    }
    attention = keys.number("rope.scaling.attn_factor", 1.0 if one_kind else 0.0)
    return settings | ({"attention_factor": attention} if attention else {})


def _numbers(keys: Keys, name: str, length: int) -> list[float]:
    tensor = keys.model.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != (length,):
        found = "nothing" if tensor is None else f"{tensor.type.name} of shape {list(tensor.shape)}"
        raise ConfigError(
            f"{keys.model.path} has for the tensor {name} {found}, but needs F32 of shape [{length}]"
        )
    return list(tensor.blocks.cast("f"))
