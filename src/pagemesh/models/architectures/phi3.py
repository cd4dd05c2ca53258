"""Phi-3 and Phi-4 (https://arxiv.org/abs/2404.14219): Llama with fused projections and LongRoPE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.architectures.fields import read_attention, read_optional_window
from pagemesh.models.architectures.llama_like import Defaults, make_decoder_spec, read_mlp
from pagemesh.models.architectures.names import ends, norms
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.sources import Source
from pagemesh.models.spec import DecoderSpec

_PHI3: Final = "Phi3ForCausalLM"


def make_phi3_spec(config: ConfigJson) -> DecoderSpec:
    """Read config.json; defaults are those of transformers' Phi3Config."""
    num_layers = config.integer("num_hidden_layers")
    config.require("attention_bias", (False,))
    return make_decoder_spec(
        config,
        _PHI3,
        Defaults(
            max_position=4096,
            norm_eps=1e-5,
            original_max_position=4096,
            partial_rope=True,
            rope_kinds=("default", "longrope", "su", "yarn"),
        ),
        read_attention(config),
        [read_mlp(config)] * num_layers,
        [read_optional_window(config, None)] * num_layers,
    )


def phi3_sources(spec: DecoderSpec) -> Iterator[Source]:
    """The checkpoint's projections are fused in the decoder's own way."""
    yield from ends(spec)
    for index in range(spec.num_layers):
        yield from norms(spec, index)
        shapes = spec.layer_shapes(index)
        for ours, theirs in (
            ("qkv.weight", "self_attn.qkv_proj.weight"),
            ("o.weight", "self_attn.o_proj.weight"),
            ("up.weight", "mlp.gate_up_proj.weight"),
            ("down.weight", "mlp.down_proj.weight"),
        ):
            name = f"model.layers.{index}.{theirs}"
            yield Source(name, shapes[ours], f"layers.{index}.{ours}")


PHI3: Final = Architecture(_PHI3, make_phi3_spec, phi3_sources)
