"""What of a spec depends on how long contexts may be."""

from __future__ import annotations

from dataclasses import replace

from pagemesh.models.rope_kinds import fix_rope
from pagemesh.models.spec import DecoderSpec


def fix_ropes(spec: DecoderSpec, max_model_len: int) -> DecoderSpec:
    """What depends on the longest context is part of the model, and thereby of its fingerprint."""
    layers = tuple(
        replace(layer, rope=fix_rope(layer.rope, max_model_len) if layer.rope else None)
        for layer in spec.layers
    )
    return replace(spec, layers=layers)
