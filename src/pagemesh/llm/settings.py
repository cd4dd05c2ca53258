"""Keyword arguments of `LLM` to settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints

import pydantic

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.errors import ConfigError

Area = TypeVar("Area")

_STRICT = pydantic.ConfigDict(strict=True)


class OfflineSettings(NamedTuple):
    """All that an engine is made from."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    hardware: HardwareConfig


_AREAS = (ModelConfig, CacheConfig, SchedulerConfig, HardwareConfig)


def read_settings(model: str | os.PathLike[str], settings: Mapping[str, Any]) -> OfflineSettings:
    """Sort settings into their areas; ConfigError naming the first that is unknown or cannot be."""
    known = {name for area in _AREAS for name in _names(area)}
    for name in settings:
        if name not in known:
            raise ConfigError(f"LLM has no setting {name!r}; there are {', '.join(sorted(known))}")
    given = {"model": os.fspath(model), **settings}
    return OfflineSettings(
        _read(ModelConfig, given),
        _read(CacheConfig, given),
        _read(SchedulerConfig, given),
        _read(HardwareConfig, given),
    )


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
            values[name] = _check(name, hint, given[name])
    return area(**values)


def _check(name: str, hint: Any, value: object) -> object:
    try:
        return pydantic.TypeAdapter(hint, config=_STRICT).validate_python(value)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{name} is {value!r}: {error.errors()[0]['msg']}") from error
