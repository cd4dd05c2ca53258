"""Quantised weights of a checkpoint: which tensors it has in the place of which, and how one becomes a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.weight import Quantised
from pagemesh.models.architectures.architecture import Source
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.awq import Awq
from pagemesh.models.quantization.bitsandbytes import BitsAndBytes
from pagemesh.models.quantization.compressed_tensors import CompressedTensors
from pagemesh.models.quantization.floats import Fp8, Mxfp4
from pagemesh.models.quantization.ggml import Ggml
from pagemesh.models.quantization.gptq import Gptq
from pagemesh.models.quantization.interface import (
    FLOATS,
    Entries,
    Format,
    PackedPart,
    Packing,
    module_of,
)
from pagemesh.models.quantization.methods import Quantization
from pagemesh.models.quantization.placing import in_order
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.torchao import TorchAo
from pagemesh.models.quantization.ways import Rounding, Way, may_be_packed
from pagemesh.models.spec import Shapes

_FORMATS: Final[Mapping[str, Callable[[ConfigJson], Format]]] = {
    "awq": Awq.read,
    "bitsandbytes": BitsAndBytes.read,
    "compressed-tensors": CompressedTensors.read,
    "fbgemm_fp8": Fp8.read,
    "fp8": Fp8.read,
    "gguf": Ggml.read,
    "gptq": Gptq.read,
    "mxfp4": Mxfp4.read,
    "torchao": TorchAo.read,
}
"""By `quant_method`."""


class Packings:
    """The matrices that a checkpoint has quantised, or that are to be quantised while it is loaded."""

    def __init__(
        self, quantization: Quantization | None, sources: Iterable[Source], entries: Entries
    ) -> None:
        """ConfigError for settings, or shapes, that cannot be read."""
        self._packings: dict[str, Packing] = {}
        self.facts: Mapping[str, Any] = {}
        """What a fingerprint has to know beside the tensors."""
        self._unread: set[str] = set()
        # AutoGPTQ gave one to each of its modules.
        self._biases: set[str] = set()
        self.num_bytes = 0
        """Of the weights that were made."""
        if quantization is None:
            return
        found = _FORMATS[quantization.method](quantization.config)
        for source in sources:
            if may_be_packed(source.parameter, source.shape):
                packing = found.find(source.tensor, source.shape, entries)
                if packing is not None:
                    self._packings[source.tensor] = packing
                    self._unread.update(packing.unread)
                    self._biases.add(f"{module_of(source.tensor)}.bias")
        settings = {key: value for key, value in asdict(found).items() if key != "where"}
        self.facts = {"quantization": [quantization.method, settings]}

    @classmethod
    def while_loading(cls, way: Way, sources: Iterable[Source], shapes: Shapes) -> Packings:
        """Of a dense checkpoint; `shapes` are those of `DecoderSpec.parameter_shapes`."""
        made = cls(None, (), {})
        for source in sources:
            to = way.rounding(source.parameter, shapes[source.parameter])
            if to is not None:
                made._packings[source.tensor] = _rounded(source, to)
        made.facts = way.facts
        return made

    def __contains__(self, tensor: str) -> bool:
        """Whether a source's tensor, or what the checkpoint has in its place, becomes a quantised weight."""
        return tensor in self._packings

    def check(
        self,
        checkpoint: Checkpoint,
        sources: Iterable[Source],
        may_ignore: Callable[[str], bool],
    ) -> list[str]:
        """Names of all tensors that the sources are made of.

        Raises ConfigError for the first that is missing, misshapen, unusable or unexpected.
        """
        parts = [part for each in self._packings.values() for part in each.parts.values()]
        shapes = {each.tensor: each.shape for each in sources if each.tensor not in self}
        shapes |= {part.tensor: part.shape for part in parts}
        biases = self._biases - shapes.keys()
        checkpoint.check(
            shapes,
            lambda name: name in self._unread or name in biases or may_ignore(name),
            {part.tensor: part.dtypes for part in parts},
        )
        for name in sorted(biases & checkpoint.entries.keys()):
            if checkpoint.read(name).any():
                raise ConfigError(
                    f"{checkpoint.entries[name].path} has the tensor {name} with other numbers than zeros, which"
                    " config.json has no place for"
                )
        return list(shapes)

    def make(
        self, source: Source, bring: Callable[[PackedPart], torch.Tensor], dtype: torch.dtype
    ) -> Quantised:
        """One of them, for rows of a type, with its rows in the parameter's order; `bring` gives a tensor where the
        weight shall be.

        Raises ConfigError for tensors that say nothing, and where an architecture changes a source's numbers.
        """
        packing = self._packings[source.tensor]
        tensors = {role: bring(part) for role, part in packing.parts.items()}
        weight = packing.make(tensors, dtype)
        self.num_bytes += weight.num_bytes
        return weight if packing.rows is None else in_order(weight, source, packing.rows)

    def first_tensor(self, source: Source) -> str:
        """Of those in the place of a source's, for messages."""
        return next(iter(self._packings[source.tensor].parts.values())).tensor


NONE_PACKED: Final = Packings(None, (), {})
"""Of checkpoints that are not quantised."""


def _rounded(source: Source, to: Rounding) -> Packing:
    """Of a tensor that is there as floats."""

    def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Quantised:
        numbers = tensors["numbers"]
        if source.convert is not None:
            numbers = source.convert(numbers)
        return round_weight(numbers, to, dtype)

    return Packing({"numbers": PackedPart(source.tensor, source.shape, FLOATS)}, make, rows=None)
