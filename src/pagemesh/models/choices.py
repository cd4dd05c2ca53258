"""What a model's config.json leaves to settings: type and longest context. No torch: plans need it too."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

from pagemesh.config import KvCacheDtype
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.sentence_length import read_sentence_length
from pagemesh.models.spec import DecoderSpec
from pagemesh.tokenizer.folder import end_token_id

FP8_KV: Final = "float8_e4m3fn"
"""What --kv-cache-dtype calls fp8, by its name in torch."""

_DTYPES: Final = ("float32", "bfloat16", "float16")


def choose_max_model_len(asked: int | None, spec: DecoderSpec, folder: Path) -> int:
    """Longest prompt plus output: --max-model-len, which may not be longer than the model can be.

    Encoders are often made for shorter texts than they have positions for; then that is the default.
    """
    own = None if spec.causal else read_sentence_length(folder)
    if asked is None:
        return spec.max_position if own is None else int(min(own, spec.max_position))
    if asked > spec.longest_position:
        raise ConfigError(
            f"--max-model-len is {asked}, but the model's own context is {spec.longest_position}"
        )
    return asked


def choose_dtype(asked: str, settings: ConfigJson, supported: Collection[str]) -> str:
    """The type asked for, or that of config.json, where a part of a larger model has its own key."""
    name = asked
    source = "--dtype"
    if name == "auto":
        parts = (settings, settings.child("text_config"))
        keys = [(part, key) for part in parts if part for key in ("dtype", "torch_dtype")]
        part, key = next(
            ((part, key) for part, key in keys if part.get(key) is not None), (settings, "dtype")
        )
        part.require(key, _DTYPES)
        name, source = str(part.get(key) or "float32"), f"{settings.where} has {key}, which"
    if name not in supported:
        raise ConfigError(
            f"{source} is {name}, in which this architecture overflows: choose --dtype "
            f"{' or '.join(supported)}"
        )
    return name


def choose_kv_dtype(
    asked: KvCacheDtype, dtype: str, device: Literal["cpu", "cuda"], *, causal: bool = True
) -> str:
    """Type of the KV blocks of a model that runs in `dtype`, by its name in torch.

    ConfigError for 8-bit floats on a CPU, which has no kernels for them, and for an encoder.
    """
    if asked == "auto":
        return dtype
    if device == "cpu":
        raise ConfigError(
            f"--kv-cache-dtype is {asked!r}, but must be auto on a CPU, whose kernels keep KV in the type"
            " of the model"
        )
    if not causal:
        raise ConfigError(
            f"--kv-cache-dtype is {asked!r}, but must be auto for an encoder, which keeps no KV"
        )
    return FP8_KV


def require_transformers(settings: ConfigJson) -> None:
    """ConfigError unless transformers is installed, for models that it runs."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"{settings.where} names an architecture that only transformers can run, which is not "
            "installed: pip install 'pagemesh[transformers]'"
        )


def read_end_token_ids(folder: Path, settings: ConfigJson, vocab_size: int) -> tuple[int, ...]:
    """Those of the model's files, and the tokenizer's own: where they differ, both end an answer, as in vLLM."""
    ids = _named_end_ids(folder, settings, vocab_size)
    own = end_token_id(folder)
    return ids if own is None or own in ids or own >= vocab_size else (*ids, own)


def _named_end_ids(folder: Path, settings: ConfigJson, vocab_size: int) -> tuple[int, ...]:
    """generation_config.json over config.json, since instruction-tuned models correct it there."""
    generation = folder / "generation_config.json"
    sources = [ConfigJson.read(generation)] if generation.is_file() else []
    for source in (*sources, settings):
        value = source.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
                raise source.bad("eos_token_id", "a token id or a list of them")
            if any(token_id >= vocab_size for token_id in ids):
                raise source.bad("eos_token_id", f"below the model's vocab_size of {vocab_size}")
            return tuple(ids)
    return ()
