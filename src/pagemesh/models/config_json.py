"""Reading a model folder's JSON files; whatever is wrong becomes a ConfigError naming file, key and value."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pagemesh.errors import ConfigError, shown
from pagemesh.gguf.documents import read_file


class ConfigJson:
    """One JSON object of a file, read key by key with the type that the reader needs."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self.where = where
        """File, and key of the object inside it, for messages."""

    @classmethod
    def read(cls, path: Path) -> ConfigJson:
        """Parse a file that must hold one JSON object, or what a GGUF file has in its place."""
        try:
            values = json.loads(read_file(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except RecursionError:
            raise ConfigError(f"{path} is not valid JSON: it is nested too deep") from None
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} holds {type(values).__name__}, but must hold a JSON object")
        return cls(values, str(path))

    def get(self, key: str) -> Any:
        """The raw value; None when absent or null."""
        return self._values.get(key)

    def __iter__(self) -> Iterator[str]:
        """All keys."""
        return iter(self._values)

    def has(self, key: str) -> bool:
        """Whether the key is there, perhaps with null."""
        return key in self._values

    def child(self, key: str) -> ConfigJson | None:
        """The object under a key; None when absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.bad(key, "a JSON object")
        return ConfigJson(value, f"{self.where}: {key}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; without a default the key must be there."""
        value = self._value_or(key, default)
        if type(value) is not int or value < 1:
            raise self.bad(key, "a positive integer")
        return value

    def count(self, key: str, default: int) -> int:
        """An integer that may be 0."""
        value = self._value_or(key, default)
        if type(value) is not int or value < 0:
            raise self.bad(key, "an integer that is not negative")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; without a default the key must be there."""
        value = self._value_or(key, default)
        if not _is_number(value):
            raise self.bad(key, "a positive number")
        return float(value)

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of so many positive numbers; the key must be there."""
        values = self._value_or(key, None)
        if (
            not isinstance(values, list)
            or len(values) != length
            or not all(map(_is_number, values))
        ):
            raise self.bad(key, f"a list of {length} positive numbers")
        return tuple(map(float, values))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value_or(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def require(self, key: str, supported: Iterable[object]) -> None:
        """Refuse a model whose setting, when it is there at all, is not among the supported ones."""
        value = self.get(key)
        if value is not None and value not in supported:
            wanted = " or ".join(json.dumps(item) for item in supported)
            raise self.bad(key, f"{wanted}: nothing else is supported")

    def bad(self, key: str, expected: str) -> ConfigError:
        """The error for a value that cannot be used."""
        value = shown(self.get(key))
        return ConfigError(f"{self.where} has {key} = {value}, but it must be {expected}")

    def _value_or(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.where} lacks the key {key!r}")
        return default


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # JSON's whole numbers may be beyond all floats.
    return 0 < value <= sys.float_info.max
