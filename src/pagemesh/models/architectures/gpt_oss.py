"""GPT-OSS (https://arxiv.org/abs/2508.10925): attention sinks, windows, experts with a clamped SwiGLU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pagemesh.models.architectures.architecture import Architecture, Source
from pagemesh.models.architectures.fields import (
    read_attention,
    read_layer_types,
    read_mixture,
    read_optional_window,
)
from pagemesh.models.architectures.llama import Defaults, make_decoder_spec
from pagemesh.models.architectures.names import ends, norms, split_attention
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec, MlpSpec, MoeSpec

if TYPE_CHECKING:
    import torch

_NAME: Final = "GptOssForCausalLM"


def make_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' GptOssConfig, but RoPE has none."""
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        raise config.bad("rope_parameters", "given")
    num_layers = config.integer("num_hidden_layers", 36)
    config.require("hidden_act", ("silu",))
    bias = config.flag("attention_bias", True)
    attention = read_attention(
        config, num_heads=64, num_kv_heads=8, head_dim=64, qkv_bias=bias, o_bias=bias
    )
    expert = MlpSpec(
        config.integer("intermediate_size", 2880),
        "clamped_swiglu",
        bias=True,
        limit=config.number("swiglu_limit", 7.0),
        alpha=config.number("swiglu_alpha", 1.702),
    )
    mixture = read_mixture(config, expert, 128, 4, normalize=True, router_bias=True)
    window = read_optional_window(config, 128)
    types = read_layer_types(config, num_layers, lambda index: index % 2 == 0)
    return make_decoder_spec(
        config,
        _NAME,
        Defaults(max_position=131_072, norm_eps=1e-5, theta=150_000.0),
        replace(attention, sinks=True),
        [mixture] * num_layers,
        [window if is_sliding else None for is_sliding in types],
    )


def sources(spec: DecoderSpec) -> Iterator[Source]:
    """Experts are stacked and transposed, their gates and ups alternate."""
    yield from ends(spec)
    for index, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{index}.", f"model.layers.{index}."
        yield from norms(spec, index)
        yield from split_attention(spec, index)
        heads = (spec.attention.num_heads,)
        yield Source(f"{theirs}self_attn.sinks", heads, f"{ours}sinks")
        assert isinstance(layer.mlp, MoeSpec)
        yield from _mixture(spec, layer.mlp, ours, f"{theirs}mlp.")


def _mixture(spec: DecoderSpec, moe: MoeSpec, ours: str, theirs: str) -> Iterator[Source]:
    experts, hidden, inner = moe.num_experts, spec.hidden_size, moe.expert.intermediate_size
    yield Source(f"{theirs}router.weight", (experts, hidden), f"{ours}router.weight")
    yield Source(f"{theirs}router.bias", (experts,), f"{ours}router.bias")
    for name, shape, parameter, convert in (
        ("gate_up_proj", (experts, hidden, 2 * inner), "up.weight", _gate_above_up),
        ("gate_up_proj_bias", (experts, 2 * inner), "up.bias", _gate_before_up),
        ("down_proj", (experts, inner, hidden), "down.weight", _transpose),
        ("down_proj_bias", (experts, hidden), "down.bias", None),
    ):
        yield Source(
            f"{theirs}experts.{name}", shape, f"{ours}experts.{parameter}", convert=convert
        )


def _gate_above_up(weight: torch.Tensor) -> torch.Tensor:
    return weight.view(*weight.shape[:2], -1, 2).permute(0, 3, 2, 1).flatten(1, 2)


def _gate_before_up(bias: torch.Tensor) -> torch.Tensor:
    return bias.view(len(bias), -1, 2).transpose(1, 2).flatten(1)


def _transpose(weight: torch.Tensor) -> torch.Tensor:
    return weight.transpose(1, 2)


GPT_OSS: Final = Architecture(_NAME, make_spec, sources)
