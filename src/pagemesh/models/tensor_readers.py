"""Tensors out of files of each format: as they are where they are numbers to compute with, unpacked otherwise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors import SafetensorError, safe_open

from pagemesh.errors import ConfigError
from pagemesh.gguf.blocks import FLOATS, PACKED, dequantise
from pagemesh.gguf.container import GgufTensor
from pagemesh.gguf.model import GgufModel
from pagemesh.models.tensor_files import TensorEntry

_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class TensorReader(Protocol):
    """Reads the tensors of one format."""

    @property
    def types(self) -> Collection[str]:
        """Those that it can read, as entries name them."""
        ...

    def read(self, name: str, entry: TensorEntry) -> torch.Tensor:
        """One tensor, backed by its file where nothing has to be unpacked; ConfigError where it cannot be read."""
        ...

    def close(self) -> None:
        """Give back what is open."""
        ...


class SafetensorsReader:
    """Implements `TensorReader`, in the checkpoint's own types."""

    types: Final = frozenset(_PLAIN)

    def __init__(self) -> None:
        self._open_files = ExitStack()
        self._files: dict[Path, Any] = {}

    def read(self, name: str, entry: TensorEntry) -> torch.Tensor:
        path = entry.path
        try:
            if path not in self._files:
                self._files[path] = self._open_files.enter_context(
                    safe_open(path, framework="pt", device="cpu")
                )
            tensor: torch.Tensor = self._files[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} cannot be read as safetensors: {error}") from error
        return tensor

    def close(self) -> None:
        self._files.clear()
        self._open_files.close()


class GgufReader:
    """Implements `TensorReader`; blocks are unpacked in float32 and rounded once, a piece at a time."""

    types: Final = frozenset((*FLOATS, *PACKED))

    def __init__(self, model: GgufModel, dtype: torch.dtype) -> None:
        """`dtype` is that of unpacked numbers."""
        self._model = model
        self._dtype = dtype

    def read(self, name: str, entry: TensorEntry) -> torch.Tensor:
        tensor = self._model.tensors[name]
        plain = _PLAIN.get(entry.dtype)
        if plain is not None:
            return _mapped(tensor, plain).view(tensor.shape)
        unpacked = torch.empty(math.prod(tensor.shape), dtype=self._dtype)
        at = 0
        for piece in dequantise(tensor):
            unpacked[at : at + len(piece)].copy_(torch.from_numpy(piece))
            at += len(piece)
        return unpacked.view(tensor.shape)

    def read_blocks(self, name: str) -> torch.Tensor:
        """Those of one tensor, uint8 [blocks, bytes], mapped."""
        tensor = self._model.tensors[name]
        return _mapped(tensor, torch.uint8).view(-1, tensor.type.block_bytes)

    def close(self) -> None:
        """Nothing is open but the map, which goes with the model."""
        for tensor in self._model.tensors.values():
            tensor.forget()


def _mapped(tensor: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    with warnings.catch_warnings():
        # The file is mapped for reading, and nobody writes to what is read.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(tensor.blocks, dtype=dtype)
