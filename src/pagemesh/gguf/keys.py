"""Reads a model's metadata key by key, with errors that name file, key and value; knows which keys nobody has read."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pagemesh.errors import ConfigError
from pagemesh.gguf.container import shown_value
from pagemesh.gguf.model import GgufModel

_MOST_TEXT_CHARS: Final = 2**17
"""Of one string; the longest that are read are chat templates, which have some ten thousand."""


class Keys:
    """The keys that begin alike: those of an architecture, of the tokenizer, or general ones."""

    def __init__(self, model: GgufModel, prefix: str) -> None:
        self.model = model
        self._prefix = f"{prefix}."
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        """The raw value; None when it is absent."""
        self._read.add(key)
        return self.model.metadata.get(self._prefix + key)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer that is not negative, or the one that an array has for each layer."""
        value = self.get(key)
        if isinstance(value, memoryview):
            # Its length first: an array may have more values than fit into memory as objects.
            is_for_layers = len(value) == self.get("block_count") and len(value) > 0
            if not is_for_layers or any(each != value[0] for each in value):
                raise self.bad(key, "one number for all layers: nothing else is supported")
            value = value[0]
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 0:
            raise self.bad(key, "an integer that is not negative")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.bad(key, "a number")
        return float(value)

    def epsilon(self, key: str) -> float:
        """A number above 0 and below 1, as people write it: 0.001, which as float32 is 0.0010000000475."""
        exact = self.number(key)
        if not 0 < exact < 1:
            raise self.bad(key, "above 0 and below 1")
        written = (float(f"{exact:.{digits}g}") for digits in range(1, 9))
        return next((each for each in written if _rounded(each) == exact), exact)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.bad(key, "true or false")
        return value

    def text(self, key: str) -> str | None:
        """A string; None when it is absent."""
        value = self.get(key)
        if value is not None and (type(value) is not str or len(value) > _MOST_TEXT_CHARS):
            raise self.bad(key, f"a string of at most {_MOST_TEXT_CHARS} characters")
        return value

    def texts(self, key: str) -> Sequence[str]:
        """An array of strings; the key must be there."""
        value = self.get(key)
        if isinstance(value, str | memoryview) or not isinstance(value, Sequence):
            raise self.bad(key, "an array of strings")
        return value

    def numbers(self, key: str, length: int) -> Sequence[Any]:
        """An array of so many numbers; the key must be there."""
        value = self.get(key)
        if not isinstance(value, memoryview) or len(value) != length:
            raise self.bad(key, f"an array of {length} numbers")
        return value.tolist()

    def octets(self, key: str, most: int) -> bytes:
        """An array of at most so many bytes; none when it is absent."""
        value = self.get(key)
        if value is None:
            return b""
        if not isinstance(value, memoryview) or value.itemsize != 1 or len(value) > most:
            raise self.bad(key, f"an array of at most {most} bytes")
        return bytes(value)

    def require(self, key: str, supported: Iterable[object]) -> None:
        """Refuse a model whose setting, when it is there at all, is not among the supported ones."""
        value = self.get(key)
        wanted = tuple(supported)
        if value is not None and value not in wanted:
            raise self.bad(key, f"{' or '.join(map(str, wanted))}: nothing else is supported")

    def refuse_rest(self) -> None:
        """Refuse a key that nobody has read, unless it says nothing: 0, false or an empty text."""
        for key in self.model.metadata:
            own = key.removeprefix(self._prefix)
            if own != key and own not in self._read and self.get(own) not in (0, ""):
                raise self.bad(own, "absent: what it asks for is not supported")

    def bad(self, key: str, expected: str) -> ConfigError:
        """The error for a value that cannot be used."""
        value = self.get(key)
        if value is None:
            return ConfigError(f"{self.model.path} lacks the key {self._prefix}{key}: {expected}")
        return ConfigError(
            f"{self.model.path} has {self._prefix}{key} = {shown_value(value)}, but it must be {expected}"
        )


def _rounded(number: float) -> float:
    """To float32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded
