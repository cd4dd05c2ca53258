"""Reads one GGUF file, mapped: its metadata and where its tensors lie. Versions 2 and 3, little-endian.

A file may come from anywhere. So each count, length and offset is held against the bytes that there are before anything
is made of it: numbers stay views of the file, strings are decoded when they are asked for.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagemesh.errors import ConfigError, shown

Value = str | int | float | bool | Sequence[Any]
"""One of metadata; an array is a sequence of the others."""

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32

_MOST_HEADER_BYTES: Final = 512 * 2**20
"""Of everything in front of the tensors' numbers; vocabularies of a million tokens take a tenth of it."""

_MOST_KEYS: Final = 2**16
_MOST_TENSORS: Final = 2**18
_MOST_STRINGS: Final = 2**23
_MOST_NAME_BYTES: Final = 2**10
_MOST_DIMENSIONS: Final = 4

_LENGTH: Final = struct.Struct("<Q")
"""Of a string."""

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7

_VALUE_FORMATS: Final[dict[int, str]] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Numbers and flags of metadata, as `struct` and memoryviews name them."""


class TensorType(NamedTuple):
    """How a tensor's numbers are packed."""

    name: str
    block_size: int  # numbers in a block
    block_bytes: int


TENSOR_TYPES: Final[dict[int, TensorType]] = {
    number: TensorType(name, block_size, block_bytes)
    for number, name, block_size, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 40),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}
"""By ggml's numbers; those that are missing have been withdrawn."""


def shown_value(value: object) -> str:
    """A value as messages show it: an array by its length, and nothing longer than a line."""
    if isinstance(value, Sequence | memoryview) and not isinstance(value, str):
        return f"an array of {len(value)} values"
    return shown(value)


class GgufTensor:
    """One tensor as the directory describes it."""

    __slots__ = ("_data", "begin", "end", "name", "path", "shape", "type")

    def __init__(
        self,
        path: Path,
        data: memoryview,
        name: str,
        type_: TensorType,
        shape: tuple[int, ...],
        begin: int,
    ) -> None:
        """`data` is the whole file."""
        self.path = path
        self.name = name
        self.type = type_
        self.shape = shape
        """Rows first: ggml's own order, which begins with the length of a row, is the other way around."""
        self.begin = begin
        """Byte offsets in the file."""
        self.end = begin + math.prod(shape) // type_.block_size * type_.block_bytes
        self._data = data

    @property
    def blocks(self) -> memoryview:
        """The bytes of its blocks, row by row, mapped and not copied."""
        return self._data[self.begin : self.end]

    def forget(self) -> None:
        """Take the pages of its blocks out of this process's memory: until they are read again, they are the file's."""
        mapped = self._data.obj
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            first = self.begin // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, first, self.end - first)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file, or one part of a model in several."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Map a file and read what is in front of its tensors' numbers.

    ConfigError naming the file, and the key or tensor, for whatever is no such file, cut or out of bounds.
    """
    if sys.byteorder != "little":
        raise ConfigError(f"{path} is little-endian, which this machine is not")
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a usable GGUF file: it is empty") from error
    return _read_file(_Reader(path, data))


class _Reader:
    """Reads values one after the other; nothing beyond the file, or what a header may have."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.at = 0
        """How far it has come, in bytes."""
        self.left_strings = _MOST_STRINGS
        """So many more may come in arrays."""
        self._size = min(len(data), _MOST_HEADER_BYTES)

    def value(self, format_: str, what: str) -> Any:
        """A number, as `struct` names its kind."""
        begin = self.at
        self.skip(struct.calcsize(f"<{format_}"), what)
        return struct.unpack_from(f"<{format_}", self.data, begin)[0]

    def integer(self, format_: str, what: str) -> int:
        """The same for one that is a count, a length or a type."""
        value: int = self.value(format_, what)
        return value

    def text(self, what: str, most: int = _MOST_HEADER_BYTES) -> str:
        """A string of at most so many bytes."""
        num_bytes = self.integer("Q", f"the length of {what}")
        if num_bytes > most:
            raise self.error(f"{what} claims {num_bytes} bytes")
        begin = self.at
        self.skip(num_bytes, what)
        return self.decode(begin, self.at, what)

    def name(self, what: str) -> str:
        """The name of a key or a tensor, which errors can show."""
        found = self.text(what, _MOST_NAME_BYTES)
        if not found.isprintable():
            raise self.error(f"{what} is {found[:80]!r}, which is none")
        return found

    def skip_texts(self, number: int, what: str) -> None:
        """Walk past so many strings."""
        # There may be hundreds of thousands: what is in their way in most cases is looked at once for each.
        data, size, length_of = self.data, self._size, _LENGTH.unpack_from
        for _ in range(number):
            end = self.at + _LENGTH.size
            if end <= size:
                end += length_of(data, self.at)[0]
            if end > size:
                self.skip(self.integer("Q", what), what)
            self.at = end

    def decode(self, begin: int, end: int, what: str) -> str:
        """The text in these bytes."""
        try:
            return str(self.data[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error}") from error

    def skip(self, num_bytes: int, what: str) -> None:
        """Go on; ConfigError where there are not so many."""
        if num_bytes > self._size - self.at:
            limit = f"the {len(self.data)} of the file"
            if self._size < len(self.data):
                limit = f"the {self._size} that a header may have"
            raise self.error(f"{what} takes {num_bytes} bytes at {self.at}, beyond {limit}")
        self.at += num_bytes

    def check_count(self, what: str, count: int, least_bytes: int, most: int) -> None:
        """ConfigError for more things than there may be, of which each takes so many bytes at least."""
        if count > most or count * least_bytes > self._size - self.at:
            raise self.error(
                f"it claims {count} {what}, more than the {len(self.data)} bytes of the file may hold"
            )

    def error(self, why: str) -> ConfigError:
        """The error for what is wrong with the file."""
        return ConfigError(f"{self.path} is not a usable GGUF file: {why}")


class _StringArray(Sequence[str]):
    """Strings in a row, decoded all at once when the first is asked for."""

    def __init__(self, reader: _Reader, what: str, begin: int, length: int) -> None:
        """They have been walked past, so that they lie within the file."""
        self._reader, self._what, self._begin, self._length = reader, what, begin, length
        self._strings: list[str] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def _read(self) -> list[str]:
        if self._strings is None:
            self._strings = list(self._decoded())
        return self._strings

    def _decoded(self) -> Iterator[str]:
        data, end = self._reader.data, self._begin
        for _ in range(self._length):
            begin = end + _LENGTH.size
            end = begin + _LENGTH.unpack_from(data, end)[0]
            try:
                yield str(data[begin:end], "utf-8")
            except UnicodeDecodeError:
                yield self._reader.decode(begin, end, self._what)


def _read_file(reader: _Reader) -> GgufFile:
    magic = bytes(reader.data[:4])
    if magic != _MAGIC:
        raise reader.error(f"it begins with {magic!r} and not {_MAGIC!r}")
    reader.at = 4
    version = reader.integer("I", "the version")
    if version not in _VERSIONS:
        order = ", or big-endian" if version & 0xFFFF == 0 else ""
        raise reader.error(f"it is of version {version}{order}, but only 2 and 3 can be read")
    num_tensors = reader.integer("Q", "the number of tensors")
    num_keys = reader.integer("Q", "the number of keys")
    # The least that a tensor and a key take.
    reader.check_count("tensors", num_tensors, 24, _MOST_TENSORS)
    reader.check_count("keys of metadata", num_keys, 13, _MOST_KEYS)
    metadata: dict[str, Value] = {}
    for number in range(num_keys):
        key = reader.name(f"key {number} of the metadata")
        if key in metadata:
            raise reader.error(f"its metadata has the key {key!r} twice")
        metadata[key] = _read_value(reader, key, reader.integer("I", f"the type of {key}"))
    alignment = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= 2**16 or alignment & (alignment - 1):
        raise reader.error(
            f"{_ALIGNMENT_KEY} is {shown_value(alignment)}, but must be a power of two"
        )
    return GgufFile(reader.path, metadata, _read_tensors(reader, num_tensors, alignment))


def _read_value(reader: _Reader, key: str, type_: int) -> Value:
    if type_ == _STRING:
        return reader.text(key)
    if type_ == _ARRAY:
        return _read_array(reader, key)
    value: int | float = reader.value(_format(reader, key, type_), key)
    return value != 0 if type_ == _BOOL else value


def _read_array(reader: _Reader, key: str) -> Sequence[Any]:
    type_ = reader.integer("I", f"the type of {key}")
    length = reader.integer("Q", f"the length of {key}")
    if type_ == _ARRAY:
        raise reader.error(f"{key} is an array of arrays, which no model's metadata has")
    begin = reader.at
    if type_ == _STRING:
        reader.check_count(f"strings in {key}", length, 8, reader.left_strings)
        reader.left_strings -= length
        reader.skip_texts(length, key)
        return _StringArray(reader, key, begin, length)
    format_ = _format(reader, key, type_)
    num_bytes = struct.calcsize(f"<{format_}")
    reader.check_count(f"values in {key}", length, num_bytes, _MOST_HEADER_BYTES)
    reader.skip(length * num_bytes, key)
    # The type checker knows formats as literals alone.
    view: Any = reader.data[begin : reader.at]
    numbers: memoryview = view.cast(format_)
    return numbers


def _format(reader: _Reader, key: str, type_: int) -> str:
    if type_ not in _VALUE_FORMATS:
        raise reader.error(f"{key} has the type {type_}, which is none of the format's")
    return _VALUE_FORMATS[type_]


def _read_tensors(reader: _Reader, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
    rows = [_read_tensor_row(reader, number) for number in range(num_tensors)]
    begin = -(-reader.at // alignment) * alignment
    found: dict[str, GgufTensor] = {}
    for name, type_, shape, offset in rows:
        if name in found:
            raise reader.error(f"it has the tensor {name} twice")
        if offset % alignment:
            raise reader.error(f"the tensor {name} begins at {offset}, no multiple of {alignment}")
        tensor = GgufTensor(reader.path, reader.data, name, type_, shape, begin + offset)
        if tensor.end > len(reader.data):
            raise reader.error(
                f"the tensor {name} of type {type_.name} and shape {list(shape)} lies in bytes {tensor.begin} to"
                f" {tensor.end}, but the file has {len(reader.data)}"
            )
        found[name] = tensor
    ordered = sorted(found.values(), key=lambda tensor: tensor.begin)
    for one, following in itertools.pairwise(ordered):
        if one.end > following.begin:
            raise reader.error(f"the tensors {one.name} and {following.name} overlap")
    return found


def _read_tensor_row(reader: _Reader, number: int) -> tuple[str, TensorType, tuple[int, ...], int]:
    """Name, type, shape and offset."""
    name = reader.name(f"the name of tensor {number}")
    what = f"the tensor {name}"
    num_dimensions = reader.integer("I", what)
    if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
        raise reader.error(f"{what} has {num_dimensions} dimensions, but may have 1 to 4")
    shape = tuple(reader.integer("Q", what) for _ in range(num_dimensions))[::-1]
    type_number = reader.integer("I", what)
    type_ = TENSOR_TYPES.get(type_number)
    if type_ is None:
        raise reader.error(f"{what} is of the type {type_number}, which is none of ggml's")
    if 0 in shape or math.prod(shape) >= 2**63 or shape[-1] % type_.block_size:
        raise reader.error(
            f"{what} has the shape {list(shape)}, which {type_.name} in blocks of {type_.block_size} cannot have"
        )
    return name, type_, shape, reader.integer("Q", what)
