"""Where the tensors of a model lie; without torch, so that one is refused before it is loaded.

Headers of safetensors are read here directly (8 bytes of length, JSON, data: the format's specification,
https://huggingface.co/docs/safetensors), because the library gives neither offsets, which the
fingerprint samples, nor a check of all shapes before the first tensor is read.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.gguf.model import is_gguf, open_gguf
from pagemesh.models.config_json import ConfigJson

_INDEX_NAME = "model.safetensors.index.json"
_FILE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000

_MOST_DIMENSIONS: Final = 64
"""Of a tensor of torch."""

_TYPE_BITS: Final = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
}
"""Of a number, of the types that safetensors names."""


class TensorEntry(NamedTuple):
    """One tensor as a header describes it."""

    path: Path
    dtype: str  # as safetensors or ggml name it, for example "BF16"
    shape: tuple[int, ...]
    begin: int  # byte offsets in the file
    end: int


def read_headers(folder: Path) -> tuple[dict[str, TensorEntry], Path]:
    """The tensors of a folder's single file or of all the files that its index names, and the file that names them.

    Those of a GGUF file, or of several that belong together, where that stands in a folder's place. Raises ConfigError
    if there is none of it, one of the files is missing, cut, of another kind or says of itself what cannot be, or two
    of them have a tensor of one name.
    """
    if is_gguf(folder):
        tensors = open_gguf(folder).tensors.values()
        return {
            each.name: TensorEntry(each.path, each.type.name, each.shape, each.begin, each.end)
            for each in tensors
        }, folder
    index, single = folder / _INDEX_NAME, folder / _FILE_NAME
    if index.is_file():
        paths, where = _shards(index), index
    elif single.is_file():
        paths, where = [single], single
    else:
        raise _no_weights(folder)
    entries: dict[str, TensorEntry] = {}
    for path in paths:
        for name, entry in _read_header(path).items():
            first = entries.setdefault(name, entry)
            if first is not entry:
                raise ConfigError(
                    f"{path} has the tensor {name}, which {first.path.name} has as well"
                )
    return entries, where


def _shards(index: Path) -> list[Path]:
    weight_map = ConfigJson.read(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index} has no weight_map, so that its files are unknown")
    paths = []
    for name in sorted({str(value) for value in weight_map.values()}):
        path = index.parent / name
        if path.parent != index.parent:
            raise ConfigError(f"{index} names the file {name!r}, which lies outside its folder")
        if not path.is_file():
            raise ConfigError(f"{path} is missing, but {index.name} names it")
        paths.append(path)
    return paths


def _no_weights(folder: Path) -> ConfigError:
    pickles = sorted(
        path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in folder.glob(suffix)
    )
    if pickles:
        return ConfigError(
            f"{folder} has its weights only as {pickles[0]}, a pickle, which is never loaded; "
            f"convert it to {_FILE_NAME}"
        )
    return ConfigError(f"{folder} has neither {_FILE_NAME} nor {_INDEX_NAME}")


def _read_header(path: Path) -> dict[str, TensorEntry]:
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            num_header_bytes = int.from_bytes(file.read(8), "little")
            if not 0 < num_header_bytes <= min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError(f"its header claims {num_header_bytes} of {size} bytes")
            header = json.loads(file.read(num_header_bytes))
        metadata = header.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict) or not all(
            isinstance(each, str) for each in metadata.values()
        ):
            raise ValueError("its header has __metadata__ of something else than strings")
        entries = {
            name: _read_entry(path, name, value, 8 + num_header_bytes)
            for name, value in header.items()
        }
    except RecursionError:
        raise ConfigError(
            f"{path} is not a safetensors file: its header is nested too deep"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a safetensors file: {error}") from error
    for name, entry in entries.items():
        _check_size(name, entry)
    _check_places(path, entries, 8 + num_header_bytes, size)
    return entries


def _read_entry(path: Path, name: str, value: Any, base: int) -> TensorEntry:
    """`base` is where the data begin. ValueError, LookupError or TypeError for what describes no tensor."""
    shape, offsets = value["shape"], value["data_offsets"]
    if not isinstance(shape, list) or any(type(each) is not int or each < 0 for each in shape):
        raise ValueError(f"its header gives the tensor {name} the shape {shape!s:.100}")
    if not isinstance(offsets, list) or list(map(type, offsets)) != [int, int]:
        raise ValueError(f"its header gives the tensor {name} the data_offsets {offsets!s:.100}")
    begin, end = offsets
    return TensorEntry(path, str(value["dtype"]), tuple(shape), base + begin, base + end)


def _check_places(path: Path, entries: dict[str, TensorEntry], base: int, size: int) -> None:
    """ConfigError unless tensors fill the file from `base` to its end, one behind the other, as the format asks."""
    expected = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        must = None
        if entry.begin != expected:
            must = f"begin at {expected - base}"
        elif entry.end < expected:
            must = f"end at {expected - base} or later"
        if must is not None:
            raise ConfigError(
                f"{path} has the tensor {name} at {entry.begin - base} to {entry.end - base} of its data, but it must"
                f" {must}"
            )
        expected = entry.end
    if expected != size:
        raise ConfigError(f"{path} has {size} bytes, but its header describes {expected}")


def _check_size(name: str, entry: TensorEntry) -> None:
    """ConfigError unless its numbers have as many bytes as the header gives them; other types are refused by whoever
    reads them."""
    if len(entry.shape) > _MOST_DIMENSIONS:
        raise ConfigError(
            f"{entry.path} has the tensor {name} with {len(entry.shape)} dimensions, but {_MOST_DIMENSIONS} are the most"
        )
    bits = _TYPE_BITS.get(entry.dtype)
    num_bits = None if bits is None else bits * math.prod(entry.shape)
    if num_bits is not None and num_bits != 8 * (entry.end - entry.begin):
        raise ConfigError(
            f"{entry.path} has the tensor {name} of type {entry.dtype} and shape {list(entry.shape)} in"
            f" {entry.end - entry.begin} bytes, but it must have {-(-num_bits // 8)}"
        )
