"""Keyword arguments of `LLM` to settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints

import pydantic

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.errors import ConfigError

Area = TypeVar("Area", ModelConfig, CacheConfig, SchedulerConfig)

_STRICT = pydantic.ConfigDict(strict=True)


class OfflineSettings(NamedTuple):
    """All that an engine is made from."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig


_AREAS = (ModelConfig, CacheConfig, SchedulerConfig)


def read_settings(model: str | os.PathLike[str], settings: Mapping[str, Any]) -> OfflineSettings:
    """Sort settings into their areas; ConfigError naming the first that is unknown or cannot be."""
    known = {field.name for area in _AREAS for field in dataclasses.fields(area)}
    for name in settings:
        if name not in known:
            raise ConfigError(f"LLM has no setting {name!r}; there are {', '.join(sorted(known))}")
    given = {"model": os.fspath(model), **settings}
    return OfflineSettings(
        _read(ModelConfig, given), _read(CacheConfig, given), _read(SchedulerConfig, given)
    )


def _read(area: type[Area], given: Mapping[str, Any]) -> Area:
    hints = get_type_hints(area)
    values = {}
    for field in dataclasses.fields(area):
        if field.name not in given:
            continue
        value = given[field.name]
        try:
            adapter = pydantic.TypeAdapter(hints[field.name], config=_STRICT)
            values[field.name] = adapter.validate_python(value)
        except pydantic.ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"{field.name} is {value!r}: {reason}") from error
    return area(**values)
