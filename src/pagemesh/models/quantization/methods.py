"""Formats of quantised checkpoints by name: what config.json calls them, and what `--quantization` may. No torch."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagemesh.config.engine import QUANTIZATIONS
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson

_KERNELS: Final = {"awq_marlin": "awq", "gptq_marlin": "gptq"}
"""Formats by their names with the kernels of another server."""

_MEANT: Final = {**_KERNELS, "fbgemm_fp8": "fp8"}
"""Other names of a format: those, and its writer's own."""

_METHODS: Final = sorted(set(QUANTIZATIONS) - _KERNELS.keys())
"""Values of `quant_method` that can be read."""


class Quantization(NamedTuple):
    """What config.json says of how its checkpoint is quantised."""

    method: str  # as in `quant_method`
    config: ConfigJson  # the object that says so


def read_quantization(config: ConfigJson, asked: str | None = None) -> Quantization | None:
    """What config.json says; None when the checkpoint is not quantised.

    ConfigError for a method that nobody here can read, and for another than `asked`, which is --quantization's.
    """
    found = _read(config)
    if asked is not None:
        _check_asked(asked, found, config)
    return found


def refuse_in_transformers(config: ConfigJson) -> None:
    """Raise ConfigError for a quantised checkpoint of a model that transformers would run."""
    found = read_quantization(config)
    if found is not None:
        raise ConfigError(
            f"{config.where} names a checkpoint quantised by {found.method}, which only pagemesh's own decoders read,"
            " not models that transformers runs"
        )


def _read(config: ConfigJson) -> Quantization | None:
    found = config.child("quantization_config")
    if found is None:
        # What compressed-tensors called it at first.
        found = config.child("compression_config")
        return None if found is None else Quantization("compressed-tensors", found)
    method = found.get("quant_method")
    if method not in _METHODS:
        raise ConfigError(
            f"{config.where} names a checkpoint quantised by {method or 'an unnamed method'}, which cannot be read;"
            f" those by {', '.join(_METHODS)} can"
        )
    return Quantization(str(method), found)


def _check_asked(asked: str, found: Quantization | None, config: ConfigJson) -> None:
    wanted = _MEANT.get(asked, asked)
    if found is None:
        raise ConfigError(
            f"--quantization is {asked}, but {config.where} names a checkpoint that is not quantised: leave it out"
        )
    if wanted != _MEANT.get(found.method, found.method):
        raise ConfigError(
            f"--quantization is {asked}, but {config.where} names a checkpoint quantised by {found.method}:"
            " leave it out, or take another checkpoint"
        )
