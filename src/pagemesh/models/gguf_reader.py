"""Tensors of a GGUF file: as they are where they are numbers to compute with, unpacked from their blocks otherwise.

Whoever keeps weights packed takes `GgufTensor.blocks` instead, the bytes as they lie in the file.
"""

from __future__ import annotations

import math
import warnings
from typing import Final

import torch

from pagemesh.gguf.blocks import DEQUANTISED, dequantise
from pagemesh.gguf.model import GgufModel
from pagemesh.models.tensor_files import TensorEntry

_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufReader:
    """Implements `TensorReader`; blocks are unpacked in float32 and rounded once, a piece at a time."""

    types: Final = frozenset(DEQUANTISED)

    def __init__(self, model: GgufModel, dtype: torch.dtype) -> None:
        """`dtype` is that of unpacked numbers."""
        self._model = model
        self._dtype = dtype

    def read(self, name: str, entry: TensorEntry) -> torch.Tensor:
        tensor = self._model.tensors[name]
        plain = _PLAIN.get(entry.dtype)
        if plain is not None:
            with warnings.catch_warnings():
                # The file is mapped for reading, and nobody writes to what is read.
                warnings.filterwarnings("ignore", "The given buffer is not writable")
                return torch.frombuffer(tensor.blocks, dtype=plain).view(tensor.shape)
        unpacked = torch.empty(math.prod(tensor.shape), dtype=self._dtype)
        at = 0
        for piece in dequantise(tensor):
            unpacked[at : at + len(piece)].copy_(torch.from_numpy(piece))
            at += len(piece)
        return unpacked.view(tensor.shape)

    def close(self) -> None:
        """Nothing is open but the map, which goes with the model."""
