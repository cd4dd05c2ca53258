"""Loads a model of transformers: from a folder to what a runner needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import torch

from pagemesh.kernels.arithmetic import arithmetic_of
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.checkpoint import Checkpoint, fingerprint
from pagemesh.models.interface import ModelShape
from pagemesh.models.kv_scales import CheckpointScales
from pagemesh.models.quantization.methods import Chosen
from pagemesh.models.quantization.ways import QuantizationWay
from pagemesh.models.transformers_backend.judge import judge
from pagemesh.models.transformers_backend.model import TransformersModel
from pagemesh.models.transformers_backend.quantised import ReadWeights, read_weights
from pagemesh.models.transformers_backend.read import read_candidate
from pagemesh.models.transformers_backend.self_check import check_logits

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Of config.json: facts about the file, or about training, that do not change the model.
_IRRELEVANT_KEYS = frozenset(("_name_or_path", "dtype", "torch_dtype", "transformers_version"))

_MATMULS: Final = 2
"""Counted up when modules are computed with other bits than in the release before."""


class TransformersLoad(NamedTuple):
    """A model in memory."""

    model: TransformersModel
    shape: ModelShape
    layer_attention: Sequence[LayerAttention]
    fingerprint: str
    arithmetic: str  # see LoadedModel
    max_model_len: int  # longest prompt plus output in tokens


def load_with_transformers(
    folder: Path,
    max_model_len: int | None,
    dtype: torch.dtype,
    device: torch.device,
    kv_dtype: str,
    quantization: Chosen | None = None,
) -> TransformersLoad:
    """Read a folder's weights once, in `dtype`. `max_model_len` None is the model's own context.

    The model is judged in the host's memory, as floats, with KV of its own type, and moved to its device then. There
    it gets our matmuls, of codes where it is quantised, and is compared again; if they do not suit it, it is read once
    more, as floats. Raises ConfigError for what cannot be served; most of it before any weight is read.
    """
    where = str(folder / "config.json")
    candidate = read_candidate(folder, max_model_len)
    max_model_len = candidate.max_model_len
    with Checkpoint.open(folder) as checkpoint:
        scales = CheckpointScales(checkpoint, kv_dtype)
    read = read_weights(folder, candidate, dtype, quantization)
    facts = _facts(folder / "config.json", quantization, read)
    identity = fingerprint(facts, str(dtype), checkpoint, checkpoint.entries)
    judged = judge(read.model, max_model_len, dtype, where)
    read = read._replace(model=None)
    shape, own_logits = judged.shape, judged.own_logits
    model = judged.model
    model.move(device)
    # Layers that attend alike go on sharing one.
    moved = {id(layer): _moved(layer, device) for layer in judged.layers}
    layers = [moved[id(layer)] for layer in judged.layers]
    del judged
    has_our_matmuls = _takes_our_matmuls(model, read, own_logits, shape, layers, dtype, device)
    if not has_our_matmuls:
        # Its own matmuls are gone, and nobody needs the memory of two models.
        del model
        read = ReadWeights(read_weights(folder, candidate, dtype, quantization).model)
        model = TransformersModel(read.model, shape.head_dim)
        model.move(device)
    if quantization is not None:
        _log_quantised(quantization, read, has_our_matmuls=has_our_matmuls)
    scaled = scales.give(layers, shape.num_kv_heads, device)
    arithmetic = _arithmetic(device, dtype, has_our_matmuls=has_our_matmuls)
    return TransformersLoad(model, shape, scaled, identity, arithmetic, max_model_len)


def _arithmetic(device: torch.device, dtype: torch.dtype, *, has_our_matmuls: bool) -> str:
    """What is no matmul of ours is torch's, whose code differs between releases and, on CPUs, between processors."""
    parts = [arithmetic_of(device, dtype), f"torch{torch.__version__.partition('+')[0]}"]
    if device.type == "cpu":
        parts.append(torch.backends.cpu.get_cpu_capability().lower())
    parts.append(f"matmuls{_MATMULS}" if has_our_matmuls else "products")
    return "-".join(parts)


def _takes_our_matmuls(
    model: TransformersModel,
    read: ReadWeights,
    own_logits: torch.Tensor,
    shape: ModelShape,
    layers: Sequence[LayerAttention],
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Give a model our matmuls; False, and one line in the log, when it cannot be used with them."""
    try:
        model.replace_matmuls(read.packed)
        with torch.inference_mode():
            check_logits(
                model, own_logits, shape, layers, dtype, device, rounds_rows=read.rounds_rows
            )
    except Exception as error:
        # A model's own code may raise anything when its modules are not what it knows.
        first_line = next(iter(str(error).splitlines()), "no details")
        log.warning(
            "torch's matmuls", model=model.name, why=f"{type(error).__name__}: {first_line}"
        )
        return False
    return True


def _log_quantised(chosen: Chosen, read: ReadWeights, *, has_our_matmuls: bool) -> None:
    """Tell what is multiplied by its codes, of how many bytes, and what is not."""
    log.info(
        "weights are quantised",
        quantization=chosen.name,
        packed_bytes=read.num_bytes,
        left_dense=list(read.left_dense) if has_our_matmuls else ["all (torch's matmuls)"],
    )


def _moved(layer: LayerAttention, device: torch.device) -> LayerAttention:
    sinks, slopes = layer.sinks, layer.alibi_slopes
    return replace(
        layer,
        sinks=None if sinks is None else sinks.to(device),
        alibi_slopes=None if slopes is None else slopes.to(device),
    )


def _facts(path: Path, chosen: Chosen | None, read: ReadWeights) -> dict[str, Any]:
    """config.json as it stands, so that it names the same model under every version of transformers; and which weights
    were quantised while they were read, as that is up to transformers' modules."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    facts = {key: value for key, value in values.items() if key not in _IRRELEVANT_KEYS}
    if not isinstance(chosen, QuantizationWay):
        return {"transformers": facts}
    return {"transformers": facts, **chosen.facts, "quantized_modules": sorted(read.packed)}
