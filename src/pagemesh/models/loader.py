"""Loads a model: settings to a decoder with its weights, ready to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.interface import BlockLayout
from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.decoder import Decoder
from pagemesh.models.fingerprint import fingerprint
from pagemesh.models.registry import find_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.models.spec import DecoderSpec
from pagemesh.models.weights import WeightReader

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    decoder: Decoder
    layer_attention: Sequence[LayerAttention]
    """How each layer attends."""

    dtype: torch.dtype
    """Type of weights, activations and KV."""

    fingerprint: str
    """Equal for workers whose KV is interchangeable."""

    max_model_len: int
    """Longest prompt plus output in tokens."""

    eos_token_ids: tuple[int, ...]
    """Tokens that end a request; empty when the model names none."""

    @property
    def spec(self) -> DecoderSpec:
        """What the decoder is made of."""
        return self.decoder.spec

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.spec.vocab_size

    def block_layout(self, block_size: int) -> BlockLayout:
        """Shape of this model's KV blocks."""
        return BlockLayout(
            block_size=block_size,
            num_layers=self.spec.num_layers,
            num_kv_heads=self.spec.num_kv_heads,
            head_dim=self.spec.head_dim,
            dtype=str(self.dtype).removeprefix("torch."),
        )


def load_model(config: ModelConfig) -> LoadedModel:
    """Find, check and load a model; sets torch's thread count for the process.

    Everything that can be wrong with a folder is found before the first weight is read and raised as
    ConfigError.
    """
    if config.threads > 0:
        torch.set_num_threads(config.threads)
    folder = resolve_model_path(config.model)
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    spec = architecture.make_spec(settings)
    max_model_len = _max_model_len(config, spec)
    dtype = _dtype_name(config, settings)
    shapes = {
        architecture.tensor_name(parameter): shape
        for parameter, shape in spec.parameter_shapes().items()
    }
    with Checkpoint.open(folder) as checkpoint:
        checkpoint.check(shapes, lambda name: architecture.is_redundant(name, spec))
        identity = fingerprint(spec, dtype, checkpoint, shapes)
        weights = WeightReader(checkpoint, architecture.tensor_name, spec, _DTYPES[dtype]).read()
    return LoadedModel(
        decoder=Decoder(spec, weights, max_model_len),
        layer_attention=[LayerAttention(1 / math.sqrt(spec.head_dim))] * spec.num_layers,
        dtype=_DTYPES[dtype],
        fingerprint=identity,
        max_model_len=max_model_len,
        eos_token_ids=_eos_token_ids(folder, settings),
    )


def _max_model_len(config: ModelConfig, spec: DecoderSpec) -> int:
    if config.max_model_len is None:
        return spec.max_position
    if config.max_model_len > spec.max_position:
        raise ConfigError(
            f"--max-model-len is {config.max_model_len}, "
            f"but the model's own context is {spec.max_position}"
        )
    return config.max_model_len


def _dtype_name(config: ModelConfig, settings: ConfigJson) -> str:
    if config.dtype != "auto":
        return config.dtype
    key = "dtype" if settings.get("dtype") is not None else "torch_dtype"
    settings.require(key, tuple(_DTYPES))
    return str(settings.get(key) or "float32")


def _eos_token_ids(folder: Path, settings: ConfigJson) -> tuple[int, ...]:
    """generation_config.json over config.json, since instruction-tuned models correct it there."""
    generation = folder / "generation_config.json"
    sources = [ConfigJson.read(generation)] if generation.is_file() else []
    for source in (*sources, settings):
        value = source.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
                raise source.bad("eos_token_id", "a token id or a list of them")
            return tuple(ids)
    return ()
