"""The flags that settings make, as far as one has to know of them to read arguments: which values follow each."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Any


class Kind(Enum):
    """What follows a flag."""

    SWITCH = 0
    """Nothing; --no-… is the opposite."""

    TEXT = 1
    NUMBER = 2
    """An integer."""

    LIST = 3
    """Any number of values."""


def own_flags(settings: type[Any]) -> Mapping[str, Kind]:
    """By flag, those of the areas within `settings` included."""
    found: dict[str, Kind] = {}
    types = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        of = types[field.name]
        if dataclasses.is_dataclass(of):
            assert isinstance(of, type)
            found |= own_flags(of)
        else:
            found[f"--{field.name.replace('_', '-')}"] = _kind(of)
    return found


def _kind(of: Any) -> Kind:
    origin, choices = typing.get_origin(of), typing.get_args(of)
    if origin in (typing.Union, UnionType):
        (of,) = (each for each in choices if each is not type(None))
        origin = typing.get_origin(of)
    if origin is tuple:
        return Kind.LIST
    return {bool: Kind.SWITCH, int: Kind.NUMBER}.get(of, Kind.TEXT)
