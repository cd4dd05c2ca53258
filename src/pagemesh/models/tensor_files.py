"""Where the tensors of a model lie; without torch, so that one is refused before it is loaded.

Headers of safetensors are read here directly (8 bytes of length, JSON, data: the format's specification,
https://huggingface.co/docs/safetensors), because the library gives neither offsets, which the
fingerprint samples, nor a check of all shapes before the first tensor is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.gguf.model import is_gguf, open_gguf
from pagemesh.models.config_json import ConfigJson

_INDEX_NAME = "model.safetensors.index.json"
_FILE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000


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
    if there is none of it, or one of the files is missing, cut or of another kind.
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
        entries.update(_read_header(path))
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
            header.pop("__metadata__", None)
            base = 8 + num_header_bytes
            entries = {
                name: TensorEntry(
                    path,
                    str(value["dtype"]),
                    tuple(int(length) for length in value["shape"]),
                    base + int(value["data_offsets"][0]),
                    base + int(value["data_offsets"][1]),
                )
                for name, value in header.items()
            }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a safetensors file: {error}") from error
    num_bytes = max((entry.end for entry in entries.values()), default=base)
    if num_bytes != size:
        raise ConfigError(f"{path} has {size} bytes, but its header describes {num_bytes}")
    return entries
