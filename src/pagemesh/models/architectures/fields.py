"""Settings that many architectures' config.json have in common, mixtures of experts among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import AttentionSpec, MlpSpec, MoeSpec

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"


def read_attention(
    config: ConfigJson,
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    head_norm: bool = False,
) -> AttentionSpec:
    """Heads and their size; `num_heads`, `num_kv_heads` and `head_dim` are the architecture's defaults.

    Without a default, or with null, there are as many kv heads as heads; without one, heads divide the
    hidden size.
    """
    num_heads = config.integer("num_attention_heads", num_heads)
    if num_kv_heads is None or config.has("num_key_value_heads"):
        num_kv_heads = num_heads
    num_kv_heads = config.integer("num_key_value_heads", num_kv_heads)
    if num_heads % num_kv_heads != 0:
        raise config.bad("num_key_value_heads", f"a divisor of num_attention_heads = {num_heads}")
    if head_dim is None:
        head_dim = max(config.integer("hidden_size") // num_heads, 1)
    size = config.integer("head_dim", head_dim)
    if size % 2 != 0:
        raise config.bad("head_dim", f"even, because RoPE turns pairs; it came out as {size}")
    return AttentionSpec(
        num_heads,
        num_kv_heads,
        size,
        scale=1 / math.sqrt(size),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        head_norm=head_norm,
    )


def read_layer_types(
    config: ConfigJson, num_layers: int, is_sliding: Callable[[int], bool]
) -> tuple[bool, ...]:
    """Whether each layer's attention has a sliding window; `is_sliding` where `layer_types` is absent."""
    types = config.get("layer_types")
    if types is None:
        return tuple(map(is_sliding, range(num_layers)))
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or not set(map(str, types)) <= {FULL, SLIDING}
    ):
        raise config.bad("layer_types", f'a list of {num_layers} times "{FULL}" or "{SLIDING}"')
    return tuple(name == SLIDING for name in types)


def read_late_windows(config: ConfigJson, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's windows: none unless switched on, and then in the layers behind the first so many."""
    num_full = config.count("max_window_layers", 28)
    return read_switched_windows(config, num_layers, lambda index: index >= num_full)


def read_switched_windows(
    config: ConfigJson, num_layers: int, is_sliding: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """Each layer's window, if `use_sliding_window` is set and the window is not null."""
    types = read_layer_types(config, num_layers, is_sliding)
    window = read_optional_window(config, 4096)
    if not config.flag("use_sliding_window", False):
        return (None,) * num_layers
    return tuple(window if sliding else None for sliding in types)


def read_optional_window(config: ConfigJson, default: int | None) -> int | None:
    """A window in tokens; the default when the key is absent, none when it is null or 0."""
    if config.has("sliding_window"):
        return config.count("sliding_window", 0) or None
    return default


def read_mixture(
    config: ConfigJson,
    expert: MlpSpec,
    num_experts: int,
    num_experts_per_token: int,
    *,
    normalize: bool,
    router_bias: bool = False,
    shared: MlpSpec | None = None,
) -> MoeSpec:
    """Experts of one kind; the numbers are the architecture's defaults."""
    key = "num_local_experts" if config.get("num_local_experts") is not None else "num_experts"
    num_experts = config.integer(key, num_experts)
    num_chosen = config.integer("num_experts_per_tok", num_experts_per_token)
    if num_chosen > num_experts:
        raise config.bad("num_experts_per_tok", f"at most {key} = {num_experts}")
    return MoeSpec(num_experts, num_chosen, expert, normalize, router_bias, shared)


def mixture_where_sparse(
    config: ConfigJson, num_layers: int, mixture: MoeSpec, dense: MlpSpec
) -> list[MlpSpec | MoeSpec]:
    """Qwen's choice of layers: every `decoder_sparse_step`-th has the mixture, unless it is listed."""
    step = config.integer("decoder_sparse_step", 1)
    dense_layers = config.get("mlp_only_layers") or []
    if not isinstance(dense_layers, list) or not all(type(index) is int for index in dense_layers):
        raise config.bad("mlp_only_layers", "a list of layer numbers")
    return [
        dense if index in dense_layers or (index + 1) % step != 0 else mixture
        for index in range(num_layers)
    ]
