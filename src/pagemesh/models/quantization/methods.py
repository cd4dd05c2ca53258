"""Formats of quantised checkpoints by name: what config.json calls them, and what `--quantization` and `--load-format`
may; and whether the first quantises a dense one. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from pagemesh.config.engine import CHECKPOINT_FORMATS, LOAD_FORMATS, require_quantization
from pagemesh.config.environment import require
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.ways import WAY_NAMES, QuantizationWay

_LOAD_FORMAT: Final = "--load-format"

_KERNELS: Final = {"awq_marlin": "awq", "gptq_marlin": "gptq"}
"""Formats by their names with the kernels of another server."""

_KINDS: Final = {"fbgemm_fp8": "fp8"}
"""Formats that may be called by the name of a more general one, which may not be called by theirs."""

_METHODS: Final = sorted(set(CHECKPOINT_FORMATS) - _KERNELS.keys())
"""Values of `quant_method` that can be read."""

_LIKE: Final = {"fbgemm_fp8": "fp8", "compressed-tensors": "int8", "torchao": "int8"}
"""Ways of quantising a dense checkpoint that come close to a format; to others, of 4 bits most of them, int4 does."""

_WRITTEN: Final = {"gguf": ", as FOLDER/FILE.gguf or owner/name:FILE.gguf"}
"""How --model names a checkpoint of a format that is no folder."""


class Quantization(NamedTuple):
    """What config.json says of how its checkpoint is quantised."""

    method: str  # as in `quant_method`
    config: ConfigJson  # the object that says so

    @property
    def name(self) -> str:
        """As a way of quantising has one."""
        return self.method


Chosen: TypeAlias = Quantization | QuantizationWay
"""How weights are quantised: by who wrote the checkpoint, or while it is loaded."""


def read_quantization(config: ConfigJson) -> Quantization | None:
    """What config.json says; None for a dense checkpoint. ConfigError for a method that nobody here can read."""
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


def choose_quantization(
    config: ConfigJson, asked: str | None, flag: str = "--quantization"
) -> Chosen | None:
    """What config.json says, or how `asked`, which `flag` says, quantises a dense checkpoint while it is loaded; None
    when weights stay dense.

    ConfigError for what `read_quantization` raises it for, and where the checkpoint is not what was asked for, or
    cannot be made so.
    """
    require_quantization(asked)
    found = read_quantization(config)
    if asked is None:
        return found
    if found is None:
        return _way(asked, config, flag)
    if _KERNELS.get(asked, asked) not in (found.method, _KINDS.get(found.method)):
        raise _another(asked, config, flag, found)
    return found


def check_load_format(folder: Path, name: str) -> None:
    """Hold what --load-format calls a model's files against its config.json; how they are read follows from that alone.

    ConfigError where the name is unknown, or that of another format than the model's.
    """
    require(name in LOAD_FORMATS, _LOAD_FORMAT, name, f"one of {', '.join(LOAD_FORMATS)}")
    if name == "auto":
        return
    config = ConfigJson.read(folder / "config.json")
    if name in CHECKPOINT_FORMATS:
        choose_quantization(config, name, _LOAD_FORMAT)
    elif name == "safetensors":
        found = read_quantization(config)
        if found is not None and found.method == "gguf":
            raise _another(name, config, _LOAD_FORMAT, found)


def _another(asked: str, config: ConfigJson, flag: str, found: Quantization) -> ConfigError:
    return ConfigError(
        f"{flag} is {asked}, but {config.where} names a checkpoint quantised by {found.method}: leave it out, or take"
        " another checkpoint"
    )


def _way(asked: str, config: ConfigJson, flag: str) -> QuantizationWay:
    for name in WAY_NAMES:
        if name == asked:
            return QuantizationWay(name)
    wanted = _KERNELS.get(asked, asked)
    raise ConfigError(
        f"{flag} is {asked}, but {config.where} names a checkpoint that is not quantised:"
        f" --quantization {_LIKE.get(asked, 'int4')} quantises it while it is loaded, or take one that is quantised by"
        f" {wanted}{_WRITTEN.get(asked, '')}"
    )
