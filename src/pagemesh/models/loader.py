"""Loads a model: settings to a decoder with its weights, ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from pagemesh.config import ModelConfig
from pagemesh.core.engine import Pooling
from pagemesh.core.kv import KvLayout
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models import choices
from pagemesh.models.architectures.architecture import Architecture
from pagemesh.models.assembly import assemble, make_layer_attention
from pagemesh.models.checkpoint import Checkpoint, find_sources, fingerprint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.interface import CausalModel, ModelShape
from pagemesh.models.kv_scales import CheckpointScales
from pagemesh.models.parameters import ON_HOST, CheckpointParameters, ModelTarget
from pagemesh.models.quantization.methods import Chosen, choose_quantization
from pagemesh.models.quantization.parts import make_packings
from pagemesh.models.registry import choose_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.models.rope import fix_ropes

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    decoder: CausalModel
    shape: ModelShape
    layer_attention: Sequence[LayerAttention]
    """How each layer attends."""

    dtype: torch.dtype
    """Type of weights and activations."""

    fingerprint: str
    """Equal for workers that serve the same model."""

    arithmetic: str
    """Class of the arithmetic that it computes with: where that and the fingerprint are equal, so are the bits."""

    max_model_len: int
    """Longest prompt plus output in tokens."""

    eos_token_ids: tuple[int, ...]
    """Tokens that end a request; empty when the model names none."""

    folder: Path
    """Where it was loaded from."""

    pooling: Pooling | None
    """How embeddings are made; None when the model gives no hidden states."""

    generates: bool = True
    """Whether it has an output head."""

    kv_dtype: str | None = None
    """Type of the KV blocks as torch names it; that of the weights when None."""

    quantization: str = ""
    """How its weights are quantised, by the checkpoint's method or the way of doing so; empty for dense ones."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.shape.vocab_size

    def block_layout(self, block_size: int) -> KvLayout:
        """Shape of this model's KV blocks; those of an encoder hold one layer at a time."""
        return KvLayout.uniform(
            block_size=block_size,
            num_layers=self.shape.num_layers if self.shape.causal else 1,
            num_kv_heads=self.shape.num_kv_heads,
            head_dim=self.shape.head_dim,
            dtype=self.kv_dtype or str(self.dtype).removeprefix("torch."),
        )


def load_model(config: ModelConfig, target: ModelTarget = ON_HOST) -> LoadedModel:
    """Find, check and load a model; sets torch's thread count for the process.

    Everything that can be wrong with a folder is found before the first weight is read and raised as
    ConfigError.
    """
    if config.threads > 0:
        torch.set_num_threads(config.threads)
    folder = resolve_model_path(config.model, config.hub)
    settings = ConfigJson.read(folder / "config.json")
    architecture = choose_architecture(folder, settings, config.model_impl)
    quantization = choose_quantization(settings, config.quantization)
    if architecture is None:
        return _load_with_transformers(config, folder, settings, quantization, target)
    return _load_decoder(config, folder, settings, architecture, quantization, target)


def _load_decoder(
    config: ModelConfig,
    folder: Path,
    settings: ConfigJson,
    architecture: Architecture,
    quantization: Chosen | None,
    target: ModelTarget,
) -> LoadedModel:
    spec = architecture.make_spec(settings)
    pooling = choices.read_pooling(folder, architecture.pooling, causal=spec.causal)
    max_model_len = choices.choose_max_model_len(config.max_model_len, spec, folder)
    spec = fix_ropes(spec, max_model_len)
    dtype = choices.choose_dtype(config.dtype, settings, architecture.dtypes)
    kv_dtype = target.kv_dtype(dtype, causal=spec.causal)
    with Checkpoint.open(folder, _DTYPES[dtype]) as checkpoint:
        sources, may_ignore = find_sources(checkpoint, architecture, spec)
        packings = make_packings(quantization, sources, checkpoint.entries, spec)
        tensors = packings.check(checkpoint, sources, may_ignore)
        packings.check_experts(checkpoint, sources, target.writer.device)
        scales = CheckpointScales(checkpoint, kv_dtype)
        facts = {"spec": asdict(spec), **packings.facts}
        identity = fingerprint(facts, dtype, checkpoint, [*tensors, *scales.tensors])
        writer = target.writer
        parameters = CheckpointParameters(
            checkpoint, sources, spec.parameter_shapes(), _DTYPES[dtype], writer, packings
        )
        with writer.computing():
            decoder = assemble(spec, parameters, max_model_len)
            layer_attention = scales.give(
                make_layer_attention(spec, parameters), spec.attention.num_kv_heads, writer.device
            )
            parameters.check()
        packings.log_quantised(spec)
        return LoadedModel(
            decoder=decoder,
            shape=ModelShape.of(spec),
            layer_attention=layer_attention,
            dtype=_DTYPES[dtype],
            fingerprint=identity,
            arithmetic=target.arithmetic(_DTYPES[dtype]),
            max_model_len=max_model_len,
            eos_token_ids=choices.read_end_token_ids(folder, settings, spec.vocab_size),
            folder=folder,
            pooling=pooling,
            generates=spec.has_head,
            kv_dtype=kv_dtype,
            quantization=quantization.name if quantization else "",
        )


def _load_with_transformers(
    config: ModelConfig,
    folder: Path,
    settings: ConfigJson,
    quantization: Chosen | None,
    target: ModelTarget,
) -> LoadedModel:
    choices.require_transformers(settings)
    # Imported here because it takes seconds, and models of pagemesh's own do without.
    from pagemesh.models.transformers_backend.load import load_with_transformers

    name = choices.choose_dtype(config.dtype, settings, _DTYPES)
    kv_dtype = target.kv_dtype(name, causal=True)
    dtype = _DTYPES[name]
    loaded = load_with_transformers(
        folder, config.max_model_len, dtype, target.writer.device, kv_dtype, quantization
    )
    return LoadedModel(
        decoder=loaded.model,
        shape=loaded.shape,
        layer_attention=loaded.layer_attention,
        dtype=dtype,
        fingerprint=loaded.fingerprint,
        arithmetic=loaded.arithmetic,
        max_model_len=loaded.max_model_len,
        eos_token_ids=choices.read_end_token_ids(folder, settings, loaded.shape.vocab_size),
        folder=folder,
        pooling=None,
        kv_dtype=kv_dtype,
        quantization=quantization.name if quantization else "",
    )
