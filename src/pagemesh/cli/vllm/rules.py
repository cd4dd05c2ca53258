"""What becomes of each flag of vLLM's; and the flags that settings make, as far as reading arguments needs them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import UnionType
from typing import Any


class Fate(StrEnum):
    """In one word, for the table of all flags."""

    SAME = "same"
    """The flag is ours as well, or has the same effect here."""

    RENAMED = "renamed"
    """Another flag of ours says it."""

    ALWAYS = "always on"
    """It says what is always so."""

    NO_EFFECT = "no effect"
    """What it is about does not exist here, and no answer depends on it."""

    PLANNED = "planned"
    """Taken as long as it asks for nothing; what it asks for is not there yet."""

    REFUSED = "refused"
    """Taken as long as it asks for nothing; what it asks for will not be there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of one flag, its value, and the flag with `no-` in front."""

    fate: Fate

    says: str = ""
    """Sentence for the log line, the refusal and the page; of a refusal, with what to write instead."""

    flag: str | None = None
    """The flag of ours that takes its place."""

    values: Mapping[str, str] = field(default_factory=dict)
    """Of the flag of ours, by values that vLLM writes differently."""

    takes_value: bool = False
    """Whether a value follows where it is accepted."""

    neutral: tuple[str, ...] = ()
    """Values with which it asks for nothing; of a flag without effect, the only ones that are accepted, if any."""


def renamed(flag: str, says: str = "", **values: str) -> Rule:
    """Another flag of ours, with some of the values renamed."""
    return Rule(Fate.RENAMED, says, flag=flag, values=values, takes_value=True)


def same(says: str) -> Rule:
    """A flag with a value whose effect the command line brings about, without a flag of ours."""
    return Rule(Fate.SAME, says, takes_value=True)


def always(says: str) -> Rule:
    """A switch that is always on."""
    return Rule(Fate.ALWAYS, says)


def no_effect(says: str, *neutral: str, takes_value: bool = False) -> Rule:
    """A flag about nothing that is here; only with some values, where `neutral` are given."""
    return Rule(Fate.NO_EFFECT, says, takes_value=takes_value or bool(neutral), neutral=neutral)


def planned(says: str, *neutral: str) -> Rule:
    """What is not there yet."""
    return Rule(Fate.PLANNED, says, takes_value=bool(neutral), neutral=neutral)


def refused(says: str, *neutral: str) -> Rule:
    """What is not to be."""
    return Rule(Fate.REFUSED, says, takes_value=bool(neutral), neutral=neutral)


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
    for each in dataclasses.fields(settings):
        of = types[each.name]
        if dataclasses.is_dataclass(of):
            assert isinstance(of, type)
            found |= own_flags(of)
        else:
            found[f"--{each.name.replace('_', '-')}"] = _kind(of)
    return found


def _kind(of: Any) -> Kind:
    origin, choices = typing.get_origin(of), typing.get_args(of)
    if origin in (typing.Union, UnionType):
        (of,) = (each for each in choices if each is not type(None))
        origin = typing.get_origin(of)
    if origin is tuple:
        return Kind.LIST
    return {bool: Kind.SWITCH, int: Kind.NUMBER}.get(of, Kind.TEXT)
