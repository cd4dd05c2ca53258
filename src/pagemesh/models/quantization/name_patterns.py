"""Which modules a checkpoint's settings name, by regular expressions too, and how they have these quantised. No torch.

Expressions come with a file that anybody may have written, and Python's `re` tries one path after the other: `(a+)+b`
takes it longer than anybody waits. The package `regex` reads the same expressions, and gives up in time; only what
repeats something very often takes it memory before it looks at the time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import regex

from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.methods import Quantization

BY_GROUP: Final = ("group", "dynamic", True)
"""Values of `actorder`, of groups that are no runs of inputs."""

_EXPRESSION: Final = "re:"
_MOST_CHARACTERS: Final = 4000
_MOST_REPEATS: Final = 1000
"""Of all counts of an expression together, as if each stood in the one before."""

_COUNTS: Final = re.compile(r"\{(\d*),?(\d*)\}")

_MOST_S: Final = 0.1
"""For a name. What is in use takes microseconds, in which nobody looks at the time."""


def fits(pattern: str, names: Iterable[str], where: str) -> bool:
    """Whether a regular expression fits the beginning of one of a module's names. ConfigError if that takes long."""
    expression = _compile(pattern, where)
    for name in names:
        try:
            if expression.match(name, timeout=_MOST_S):
                return True
        except TimeoutError:
            raise ConfigError(
                f"{where} has the regular expression {pattern!r}, which takes too long to match with {name}"
            ) from None
    return False


@lru_cache(maxsize=1024)
def _compile(text: str, where: str) -> regex.Pattern[str]:
    """ConfigError for what is no regular expression."""
    if len(text) > _MOST_CHARACTERS:
        why = f"it has {len(text)} characters, but {_MOST_CHARACTERS} are the most"
    elif _num_repeats(text) > _MOST_REPEATS:
        why = f"it repeats something more than {_MOST_REPEATS} times"
    else:
        try:
            return regex.compile(text)
        except (regex.error, OverflowError) as error:
            why = str(error)
        except RecursionError:
            why = "it is nested too deep"
    raise ConfigError(
        f"{where} must have regular expressions, but {text!r:.200} is none that is taken: {why}"
    )


def _num_repeats(text: str) -> int:
    counts = (max(int(least or 1), int(most or 1)) for least, most in _COUNTS.findall(text))
    return math.prod(counts)


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
    return partial(_alike, None if bits is None else ModuleCodes(bits), kept, config.where)


def read_patterns(config: ConfigJson, key: str) -> tuple[str, ...]:
    """compressed-tensors' names of modules, classes, and regular expressions behind `re:`. ConfigError for others."""
    values = config.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise config.bad(key, "a list of strings")
    for value in values:
        if value.startswith(_EXPRESSION):
            _compile(value.removeprefix(_EXPRESSION), f"{config.where}: {key}")
    return tuple(values)


_Scheme = TypeVar("_Scheme")


def find_scheme(
    names: Collection[str],
    schemes: Collection[tuple[tuple[str, ...], _Scheme]],
    ignored: Iterable[str],
    where: str,
) -> _Scheme | None:
    """compressed-tensors' scheme of a linear module by its names, of several with their targets; None for one that is
    ignored. Its own name counts before expressions, and these before its class."""
    if _names(names, ignored, where):
        return None
    for is_wanted in (
        lambda target: target in names,
        lambda target: target.startswith(_EXPRESSION) and _names(names, (target,), where),
        lambda target: target == "Linear",
    ):
        for targets, scheme in schemes:
            if any(map(is_wanted, targets)):
                return scheme
    return None


def _names(names: Collection[str], targets: Iterable[str], where: str) -> bool:
    """Whether one of a linear module's names, or its class, is among targets."""
    return any(
        fits(target.removeprefix(_EXPRESSION), names, where)
        if target.startswith(_EXPRESSION)
        else target == "Linear" or target in names
        for target in targets
    )


def has_act_order(weights: ConfigJson) -> bool:
    """Whether a scheme of compressed-tensors has groups that are no runs of inputs."""
    return weights.get("actorder") in BY_GROUP


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
    _compile(text, config.where)
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
        return find_scheme(names, schemes, ignored, config.where)

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
        fitting = (codes for pattern, codes in rules if fits(pattern, names, config.where))
        return next(fitting, default)

    return of


def _alike(
    codes: ModuleCodes | None, kept: Iterable[str], where: str, names: Collection[str]
) -> ModuleCodes | None:
    """Of settings for all modules but those that are named; how writers read such names differs, so parts do."""
    is_kept = any(_is_in(part.removeprefix(_EXPRESSION), names, where) for part in kept)
    return None if is_kept else codes


def _is_in(part: str, names: Collection[str], where: str) -> bool:
    if any(part in name for name in names):
        return True
    try:
        return fits(f".*(?:{part})", names, where)
    except ConfigError:
        # No expression, and perhaps the name of another module.
        return False


def _codes(bits: Any, has_order: bool, rule: str = "") -> ModuleCodes | None:
    if type(bits) is not int or bits not in (4, 8):
        return None
    return ModuleCodes(bits, has_order, rule)


def _strings(values: Any) -> list[str]:
    return [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
