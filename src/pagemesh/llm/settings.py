"""Keyword arguments of `LLM` to settings, and to the model that they name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.config.served import with_gguf_file
from pagemesh.errors import ConfigError
from pagemesh.models.quantization.methods import check_load_format
from pagemesh.models.resolve import resolve_model_path

Area = TypeVar("Area")


class OfflineSettings(NamedTuple):
    """All that an engine is made from."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    hardware: HardwareConfig


_AREAS = (ModelConfig, CacheConfig, SchedulerConfig, HardwareConfig)


def read_settings(
    model: str | os.PathLike[str], settings: Mapping[str, Any], gguf_file: str | None = None
) -> OfflineSettings:
    """Sort settings into their areas, the model's GGUF file behind its folder or hub id; ConfigError naming the first
    that is unknown or cannot be."""
    known = {name for area in _AREAS for name in _names(area)}
    for name in settings:
        if name not in known:
            raise ConfigError(f"LLM has no setting {name!r}; there are {', '.join(sorted(known))}")
    source = os.fspath(model)
    if gguf_file is not None:
        source = with_gguf_file(source, gguf_file)
    given = {"model": source, **settings}
    return OfflineSettings(
        _read(ModelConfig, given),
        _read(CacheConfig, given),
        _read(SchedulerConfig, given),
        _read(HardwareConfig, given),
    )


def find_model(config: ModelConfig, load_format: str) -> Path:
    """Its folder or GGUF file; ConfigError where there is none, or one that `load_format` is not the name of."""
    folder = resolve_model_path(config.model, config.hub)
    check_load_format(folder, load_format)
    return folder


def _names(area: type[Any]) -> list[str]:
    """Settings of an area and of the areas in it, side by side as on the command line."""
    names: list[str] = []
    hint: Any  # a type, or what stands for several
    for name, hint in get_type_hints(area).items():
        names += _names(hint) if _is_area(hint) else [name]
    return names


def _is_area(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _read(area: type[Area], given: Mapping[str, Any]) -> Area:
    values: dict[str, Any] = {}
    hint: Any
    for name, hint in get_type_hints(area).items():
        if _is_area(hint):
            values[name] = _read(hint, given)
        elif name in given:
            value = given[name]
            values[name] = value if _is_of(hint, value) else _converted(name, hint, value)
    return area(**values)


def _is_of(hint: Any, value: object) -> bool:
    """Whether a value is what is asked for as it is."""
    if get_origin(hint) is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(hint))
    return type(value) in (get_args(hint) or (hint,))


def _converted(name: str, hint: Any, value: object) -> object:
    """A value as what is asked for, as an integer for a float; ConfigError where it cannot be."""
    # Takes a tenth of a second, which few need.
    import pydantic

    try:
        strict = pydantic.ConfigDict(strict=True)
        return pydantic.TypeAdapter(hint, config=strict).validate_python(value)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{name} is {value!r}: {error.errors()[0]['msg']}") from error
