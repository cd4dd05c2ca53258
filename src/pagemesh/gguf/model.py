"""One model out of its GGUF files: the metadata of the first, the tensors of all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from pagemesh.errors import ConfigError
from pagemesh.gguf.container import GgufFile, GgufTensor, Value, read_gguf, shown_value

SUFFIX: Final = ".gguf"

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
"""Name, number and count of the files that `llama-gguf-split` makes of one."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What the files say; numbers stay where they are."""

    path: Path
    """The file, or the first of several."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]

    texts: dict[str, str] = field(default_factory=dict, compare=False)
    """By the names of a folder's files, those that were asked for already: a vocabulary takes tenths of a second."""

    def num_rows(self, name: str) -> int:
        """Of a tensor, whose name comes without `.weight`; ConfigError for none of two dimensions."""
        tensor = self.tensors.get(f"{name}.weight")
        if tensor is None or len(tensor.shape) != 2:
            raise ConfigError(f"{self.path} lacks the tensor {name}.weight of two dimensions")
        return tensor.shape[0]


def is_gguf(path: Path) -> bool:
    """Whether it is a file by whose name it is a GGUF file."""
    return path.suffix == SUFFIX and path.is_file()


def open_gguf(path: Path) -> GgufModel:
    """A file's model; of one in several files all must be there. ConfigError names file, and key or tensor.

    The last one stays open, since its parts are asked for one after the other.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return _open(path, state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=1)
def _open(path: Path, *_state: int) -> GgufModel:
    first = read_gguf(path)
    count = _number(first, "split.count", 1)
    if count == 1:
        return GgufModel(path, first.metadata, first.tensors)
    tensors: dict[str, GgufTensor] = {}
    for number, part in enumerate(_parts(path, count)):
        file = first if number == 0 else read_gguf(part)
        found = _number(file, "split.no", -1), _number(file, "split.count", 1)
        if found != (number, count):
            raise ConfigError(
                f"{part} says that it is part {found[0]} of {found[1]}, but is read as part {number} of {count}"
            )
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise ConfigError(f"{part} has the tensor {name}, which {tensors[name].path} has")
            tensors[name] = tensor
    promised = _number(first, "split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise ConfigError(
            f"{path} promises {promised} tensors, but its {count} files have {len(tensors)}"
        )
    return GgufModel(path, first.metadata, tensors)


def _number(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int:
        raise ConfigError(
            f"{file.path} has {key} = {shown_value(value)}, but it must be an integer"
        )
    return value


def _parts(path: Path, count: int) -> list[Path]:
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise ConfigError(
            f"{path} is one of {count} files, but is not called NAME-00001-of-{count:05}{SUFFIX}"
        )
    if int(match[2]) != 1:
        raise ConfigError(
            f"{path} is one of {count} files: name the first, {match[1]}-00001-of-{match[3]}{SUFFIX}"
        )
    found = []
    for number in range(1, count + 1):
        part = path.with_name(f"{match[1]}-{number:05}-of-{match[3]}{SUFFIX}")
        if not part.is_file():
            raise ConfigError(f"{part} is missing: {path.name} is one of {count} files")
        found.append(part)
    return found
