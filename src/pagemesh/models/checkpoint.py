"""The tensors of a model: whether they fit, their bytes, and the name of the model that they are.

Only workers that compute the same KV exchange it, so "the same model" has a name, its fingerprint. Sampling the
weights instead of reading them all keeps it in the milliseconds for checkpoints of hundreds of gigabytes; different
trainings differ in practically every sampled block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch

from pagemesh.errors import ConfigError
from pagemesh.gguf.model import is_gguf, open_gguf
from pagemesh.models.architectures.architecture import Architecture, Source
from pagemesh.models.gguf_sources import gguf_sources, may_ignore_in_gguf
from pagemesh.models.spec import DecoderSpec
from pagemesh.models.tensor_files import TensorEntry, read_headers
from pagemesh.models.tensor_readers import GgufReader, SafetensorsReader, TensorReader


class Checkpoint:
    """All tensors of a model. Opening reads headers only; use it as a context manager to read tensors."""

    def __init__(
        self, entries: Mapping[str, TensorEntry], where: Path, reader: TensorReader
    ) -> None:
        self.entries = entries
        self.where = where
        """The file, or the index, that names the tensors."""
        self._reader = reader
        self._spec_file = "its metadata" if is_gguf(where) else "config.json"

    @classmethod
    def open(cls, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
        """Read the headers of a folder's single file, of all the files that its index names, or of a GGUF file.

        Quantised blocks of the last are unpacked to `dtype`.
        """
        entries, where = read_headers(folder)
        reader: TensorReader = SafetensorsReader()
        if is_gguf(folder):
            reader = GgufReader(open_gguf(folder), dtype)
        return cls(entries, where, reader)

    def check(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        may_ignore: Callable[[str], bool],
        dtypes: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """Raise ConfigError for the first tensor that is missing, misshapen, unusable or unexpected.

        `dtypes` are the types that tensors may have, where they are no ordinary floats.
        """
        for name, shape in shapes.items():
            entry = self.entries.get(name)
            if entry is None:
                raise ConfigError(f"{self.where} lacks the tensor {name} of shape {list(shape)}")
            if entry.shape != shape:
                raise ConfigError(
                    f"{entry.path} has the tensor {name} with shape {list(entry.shape)}, "
                    f"but {self._spec_file} asks for {list(shape)}"
                )
            supported = dtypes.get(name, self._reader.types)
            if entry.dtype not in supported:
                raise ConfigError(
                    f"{entry.path} has the tensor {name} of type {entry.dtype}, "
                    f"but only {', '.join(sorted(supported))} can be loaded"
                )
        for name, entry in self.entries.items():
            if name not in shapes and not may_ignore(name):
                raise ConfigError(
                    f"{entry.path} has the tensor {name} with shape {list(entry.shape)}, "
                    f"which {self._spec_file} has no place for"
                )

    def read(self, name: str) -> torch.Tensor:
        """One tensor, backed by its file until it is copied where it is in a type to compute with."""
        return self._reader.read(name, self.entries[name])

    def read_blocks(self, name: str) -> torch.Tensor:
        """One tensor of a GGUF file as it lies there, uint8 [blocks, bytes of one]."""
        assert isinstance(self._reader, GgufReader), "other files have no blocks"
        return self._reader.read_blocks(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reader.close()


def find_sources(
    checkpoint: Checkpoint, architecture: Architecture, spec: DecoderSpec
) -> tuple[list[Source], Callable[[str], bool]]:
    """The tensors that the model is made of, under the names of this checkpoint; and whether others may be there."""
    names = checkpoint.entries.keys()
    if is_gguf(checkpoint.where):
        return gguf_sources(architecture, spec, checkpoint.entries), may_ignore_in_gguf
    return architecture.named_sources(spec, names), partial(architecture.may_ignore, spec=spec)


# Names how the decoder lays out keys and values; a change makes old and new workers incompatible.
_KV_FORMAT = "rope-pairs-1"
_SAMPLE_BYTES = 4096


def fingerprint(
    facts: Mapping[str, Any], dtype: str, checkpoint: Checkpoint, tensor_names: Iterable[str]
) -> str:
    """Hex BLAKE2b-128 over architecture, type, and the named tensors' headers and sampled bytes.

    `facts` say what the weights are weights of, in values that JSON knows.
    The first and last 4 KiB of every tensor count; how the tensors are spread over files does not.
    """
    digest = blake2b(digest_size=16, person=b"pagemesh-model")
    named = {"kv_format": _KV_FORMAT, "dtype": dtype, **facts}
    digest.update(json.dumps(named, sort_keys=True).encode())
    entries = sorted((name, checkpoint.entries[name]) for name in tensor_names)
    by_file = sorted(entries, key=lambda item: (item[1].path, item[1].begin))
    samples: dict[str, bytes] = {}
    for path in dict.fromkeys(entry.path for _, entry in by_file):
        with path.open("rb") as file:
            for name, entry in by_file:
                if entry.path == path:
                    file.seek(entry.begin)
                    head = file.read(min(_SAMPLE_BYTES, entry.end - entry.begin))
                    file.seek(max(entry.begin, entry.end - _SAMPLE_BYTES))
                    samples[name] = head + file.read(min(_SAMPLE_BYTES, entry.end - entry.begin))
    for name, entry in entries:
        digest.update(json.dumps([name, entry.dtype, entry.shape]).encode())
        digest.update(samples[name])
    return digest.hexdigest()
