"""Formats of quantised checkpoints by name: what config.json calls them, and what `--quantization` and `--load-format`
may; whether the first quantises a dense one; and which modules settings name. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

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


class ModuleCodes(NamedTuple):
    """How settings have one module quantised."""

    bits: int  # of a code, 4 or 8
    has_order: bool = False  # whether groups may be no runs of inputs (act-order)
    rule: str = ""  # where settings differ, the key of those that say so


CodesOf: TypeAlias = Callable[[Collection[str]], ModuleCodes | None]
"""Of a module by the names that it may have; None for one with floats, or with codes that nobody here can read."""

_KEPT_KEYS: Final = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
"""Where settings name the modules that have floats."""

_TORCHAO_BITS: Final = {"Int8WeightOnlyConfig": 8, "Int4WeightOnlyConfig": 4}


def codes_by_settings(quantization: Quantization) -> CodesOf:
    """For those who have no tensors to look at: rather more bits than a checkpoint has than less.

    ConfigError for patterns that are none.
    """
    config = quantization.config
    match quantization.method:
        case "compressed-tensors":
            return _by_schemes(config)
        case "gptq":
            return _by_patterns(config)
        case "awq" | "mxfp4":
            bits: int | None = 4
        case "bitsandbytes":
            bits = 4 if config.get("load_in_4bit") is True else 8
        case "torchao":
            kind = config.child("quant_type")
            default = None if kind is None else kind.child("default")
            bits = None if default is None else _TORCHAO_BITS.get(str(default.get("_type")))
        case _:
            bits = 8
    kept = [each for key in _KEPT_KEYS for each in _strings(config.get(key))]
    return partial(_alike, None if bits is None else ModuleCodes(bits), kept)


def read_patterns(config: ConfigJson, key: str) -> tuple[str, ...]:
    """compressed-tensors' names of modules, classes, and regular expressions behind `re:`. ConfigError for others."""
    values = config.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise config.bad(key, "a list of strings")
    for value in values:
        try:
            re.compile(value.removeprefix("re:"))
        except re.error:
            raise config.bad(key, f"regular expressions, which {value!r} is not") from None
    return tuple(values)


_Scheme = TypeVar("_Scheme")


def find_scheme(
    names: Collection[str],
    schemes: Collection[tuple[tuple[str, ...], _Scheme]],
    ignored: Iterable[str],
) -> _Scheme | None:
    """compressed-tensors' scheme of a linear module by its names, of several with their targets; None for one that is
    ignored. Its own name counts before expressions, and these before its class."""
    if _fits(names, ignored):
        return None
    for is_wanted in (
        lambda target: target in names,
        lambda target: target.startswith("re:") and _fits(names, (target,)),
        lambda target: target == "Linear",
    ):
        for targets, scheme in schemes:
            if any(map(is_wanted, targets)):
                return scheme
    return None


def _fits(names: Collection[str], patterns: Iterable[str]) -> bool:
    """Whether one of a linear module's names, or its class, is among these."""
    return any(
        any(re.match(pattern.removeprefix("re:"), name) for name in names)
        if pattern.startswith("re:")
        else pattern == "Linear" or pattern in names
        for pattern in patterns
    )


def has_act_order(weights: ConfigJson) -> bool:
    """Whether a scheme of compressed-tensors has groups that are no runs of inputs."""
    return weights.get("actorder") in ("group", "dynamic")


class DynamicRule(NamedTuple):
    """What GPTQ's `dynamic` says of the modules whose names its pattern fits, the first that does."""

    pattern: str
    changes: ConfigJson | None  # of the settings; None for modules that have floats


def read_dynamic(config: ConfigJson) -> list[DynamicRule]:
    """In their order. ConfigError for patterns that are none."""
    dynamic = config.child("dynamic")
    if dynamic is None:
        return []
    return [
        DynamicRule(
            _pattern(key, dynamic),
            None if key.startswith("-:") else dynamic.child(key) or ConfigJson({}, dynamic.where),
        )
        for key in dynamic
    ]


def _pattern(key: str, config: ConfigJson) -> str:
    text = key.removeprefix("-:").removeprefix("+:")
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{config.where} must have regular expressions as keys, which {key!r} is not: {error}"
        ) from None
    return text


def _by_schemes(config: ConfigJson) -> CodesOf:
    ignored = read_patterns(config, "ignore")
    groups = config.child("config_groups") or ConfigJson({}, config.where)
    schemes: list[tuple[tuple[str, ...], ModuleCodes | None]] = []
    for name in groups:
        group = groups.child(name)
        weights = None if group is None else group.child("weights")
        if group is not None and weights is not None:
            codes = _codes(weights.get("num_bits"), has_act_order(weights), name)
            schemes.append((read_patterns(group, "targets"), codes))

    def of(names: Collection[str]) -> ModuleCodes | None:
        return find_scheme(names, schemes, ignored)

    return of


def _by_patterns(config: ConfigJson) -> CodesOf:
    bits, order = config.get("bits"), config.get("desc_act") is True
    default = _codes(bits, order)
    rules: list[tuple[str, ModuleCodes | None]] = []
    for pattern, changes in read_dynamic(config):
        codes = None
        if changes is not None:
            own_order = order if changes.get("desc_act") is None else changes.get("desc_act")
            codes = _codes(changes.get("bits") or bits, own_order is True, pattern)
        rules.append((pattern, codes))

    def of(names: Collection[str]) -> ModuleCodes | None:
        fitting = (
            codes for pattern, codes in rules if any(re.match(pattern, name) for name in names)
        )
        return next(fitting, default)

    return of


def _alike(
    codes: ModuleCodes | None, kept: Iterable[str], names: Collection[str]
) -> ModuleCodes | None:
    """Of settings for all modules but those that are named; how writers read such names differs, so parts do."""
    return None if any(_occurs(part, name) for part in kept for name in names) else codes


def _occurs(part: str, name: str) -> bool:
    try:
        return re.search(part.removeprefix("re:"), name) is not None
    except re.error:
        return False


def _codes(bits: Any, has_order: bool, rule: str = "") -> ModuleCodes | None:
    if type(bits) is not int or bits not in (4, 8):
        return None
    return ModuleCodes(bits, has_order, rule)


def _strings(values: Any) -> list[str]:
    return [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
