"""From config.json's rope settings to `RopeSpec`, in both spellings.

`rope_parameters` is that of transformers 5, perhaps one object for each layer type; `rope_theta` with
`rope_scaling` that of before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import RopeSpec

DEFAULT_THETA: Final = 10_000.0
ALL_KINDS: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


class RopeFacts(NamedTuple):
    """What the settings are read against."""

    head_dim: int
    max_position: int  # max_position_embeddings
    theta: float  # unless the settings name one
    original_max_position: int | None = None  # the same; max_position when None
    partial: bool = False  # whether the architecture may turn a part of each head
    kinds: Collection[str] = ALL_KINDS


def read_rope(config: ConfigJson, facts: RopeFacts) -> RopeSpec:
    """The one RoPE of all layers; ConfigError for what cannot be expressed."""
    return parse_rope(config, rope_settings(config), facts)


def rope_settings(config: ConfigJson) -> ConfigJson:
    """The object with the settings; an empty one when config.json has none."""
    settings = config.child("rope_parameters") or config.child("rope_scaling")
    return settings or ConfigJson({}, config.where)


def parse_rope(config: ConfigJson, rope: ConfigJson, facts: RopeFacts) -> RopeSpec:
    """A RopeSpec from its own settings and the defaults that stand beside them in config.json."""
    for layer_type in ("full_attention", "sliding_attention"):
        if rope.get(layer_type) is not None:
            raise rope.bad(layer_type, "absent: this architecture has one RoPE for all layers")
    kind_key = "rope_type" if rope.get("rope_type") is not None else "type"
    rope.require(kind_key, facts.kinds)
    kind = str(rope.get(kind_key) or "default")
    if "su" in facts.kinds and kind in ("su", "yarn"):
        # What early checkpoints of Phi-3 call it.
        kind = "longrope"
    theta = rope.number("rope_theta", config.number("rope_theta", facts.theta))
    return _READERS[kind](config, rope, facts, theta, _rotary_dim(config, rope, facts))


def longest_position(rope: RopeSpec, max_position: int) -> int:
    """Longest context that the frequencies can be stretched to, in tokens."""
    if rope.kind in ("dynamic", "yarn"):
        return max(max_position, int(rope.original_max_position * rope.factor))
    return max_position


def _rotary_dim(config: ConfigJson, rope: ConfigJson, facts: RopeFacts) -> int:
    key = "partial_rotary_factor"
    source = rope if rope.get(key) is not None else config
    if not facts.partial:
        source.require(key, (1.0,))
    rotary_dim = int(facts.head_dim * source.number(key, 1.0))
    if rotary_dim % 2 != 0 or not 2 < rotary_dim <= facts.head_dim:
        raise source.bad(
            key if source.get(key) is not None else "head_dim",
            f"such that an even number of at least 4 dimensions of a head turn, not {rotary_dim} "
            f"of {facts.head_dim}",
        )
    return rotary_dim


def _default(
    config: ConfigJson, rope: ConfigJson, facts: RopeFacts, theta: float, rotary_dim: int
) -> RopeSpec:
    return RopeSpec(theta, rotary_dim)


def _linear(
    config: ConfigJson, rope: ConfigJson, facts: RopeFacts, theta: float, rotary_dim: int
) -> RopeSpec:
    return RopeSpec(theta, rotary_dim, "linear", rope.number("factor"))


def _dynamic(
    config: ConfigJson, rope: ConfigJson, facts: RopeFacts, theta: float, rotary_dim: int
) -> RopeSpec:
    return RopeSpec(
        theta,
        rotary_dim,
        "dynamic",
        _factor(rope),
        original_max_position=facts.max_position,
    )


def _llama3(
    config: ConfigJson, rope: ConfigJson, facts: RopeFacts, theta: float, rotary_dim: int
) -> RopeSpec:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.bad("low_freq_factor", f"less than high_freq_factor = {high}")
    return RopeSpec(
        theta,
        rotary_dim,
        "llama3",
        rope.number("factor"),
        original_max_position=_original(config, rope, facts),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(
    config: ConfigJson, rope: ConfigJson, facts: RopeFacts, theta: float, rotary_dim: int
) -> RopeSpec:
    original = _original(config, rope, facts)
    factor = rope.number("factor", facts.max_position / original)
    return RopeSpec(
        theta,
        rotary_dim,
        "yarn",
        factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", _yarn_attention_factor(rope, factor)),
    )


def _yarn_attention_factor(rope: ConfigJson, factor: float) -> float:
    """As transformers: the ratio of two of the paper's factors where mscale asks for it."""
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        numerator = _yarn_mscale(factor, rope.number("mscale"))
        return numerator / _yarn_mscale(factor, rope.number("mscale_all_dim"))
    return _yarn_mscale(factor, 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(
    config: ConfigJson, rope: ConfigJson, facts: RopeFacts, theta: float, rotary_dim: int
) -> RopeSpec:
    original = _original(config, rope, facts)
    factor = rope.number("factor", facts.max_position / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeSpec(
        theta,
        rotary_dim,
        "longrope",
        original_max_position=original,
        short_factors=rope.numbers("short_factor", rotary_dim // 2),
        long_factors=rope.numbers("long_factor", rotary_dim // 2),
        attention_factor=rope.number("attention_factor", default),
    )


def _factor(rope: ConfigJson) -> float:
    factor = rope.number("factor")
    if factor < 1:
        raise rope.bad("factor", "at least 1")
    return factor


def _original(config: ConfigJson, rope: ConfigJson, facts: RopeFacts) -> int:
    """Beside the rope settings it counts more than among them, as in transformers (Phi-3)."""
    key = "original_max_position_embeddings"
    source = config if config.get(key) is not None else rope
    return source.integer(key, facts.original_max_position or facts.max_position)


_Reader = Callable[[ConfigJson, ConfigJson, RopeFacts, float, int], RopeSpec]
_READERS: Final[dict[str, _Reader]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
