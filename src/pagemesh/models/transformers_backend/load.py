"""Loads a model of transformers: from a folder to what a runner needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.fingerprint import fingerprint
from pagemesh.models.interface import ModelShape
from pagemesh.models.kv_scales import CheckpointScales
from pagemesh.models.transformers_backend.candidate import read_candidate
from pagemesh.models.transformers_backend.causal_model import TransformersModel
from pagemesh.models.transformers_backend.judging import judge
from pagemesh.models.transformers_backend.reading import read_model

# Of config.json: facts about the file, or about training, that do not change the model.
_IRRELEVANT_KEYS = frozenset(("_name_or_path", "dtype", "torch_dtype", "transformers_version"))


class TransformersLoad(NamedTuple):
    """A model in memory."""

    model: TransformersModel
    shape: ModelShape
    layer_attention: Sequence[LayerAttention]
    fingerprint: str
    max_model_len: int  # longest prompt plus output in tokens


def load_with_transformers(
    folder: Path,
    max_model_len: int | None,
    dtype: torch.dtype,
    device: torch.device,
    kv_dtype: str,
) -> TransformersLoad:
    """Read a folder's weights once, in `dtype`. `max_model_len` None is the model's own context.

    The model is judged in the host's memory, with KV of its own type, and moved to its device then.
    Raises ConfigError for what cannot be served; most of it before any weight is read.
    """
    where = str(folder / "config.json")
    cls, config, _, max_model_len = read_candidate(folder, max_model_len)
    with Checkpoint.open(folder) as checkpoint:
        facts = {"transformers": _facts(folder / "config.json")}
        identity = fingerprint(facts, str(dtype), checkpoint, checkpoint.entries)
        scales = CheckpointScales(checkpoint, kv_dtype)
    model = read_model(folder, cls, config, dtype)
    judged = judge(model, max_model_len, dtype, where)
    judged.model.move(device)
    # Layers that attend alike go on sharing one.
    moved = {id(layer): _moved(layer, device) for layer in judged.layers}
    layers = scales.give(
        [moved[id(layer)] for layer in judged.layers], judged.shape.num_kv_heads, device
    )
    return TransformersLoad(judged.model, judged.shape, layers, identity, max_model_len)


def _moved(layer: LayerAttention, device: torch.device) -> LayerAttention:
    sinks, slopes = layer.sinks, layer.alibi_slopes
    return replace(
        layer,
        sinks=None if sinks is None else sinks.to(device),
        alibi_slopes=None if slopes is None else slopes.to(device),
    )


def _facts(path: Path) -> dict[str, Any]:
    """config.json as it stands, so that it names the same model under every version of transformers."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key not in _IRRELEVANT_KEYS}
