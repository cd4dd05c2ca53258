"""Weights of a quantised checkpoint: which tensors it has in the place of which, and how one becomes a weight."""

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
    Entries,
    Format,
    PackedPart,
    Packing,
    module_of,
)
from pagemesh.models.quantization.methods import Quantization
from pagemesh.models.quantization.placing import in_order
from pagemesh.models.quantization.torchao import TorchAo

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
    """The matrices that a checkpoint has quantised."""

    def __init__(
        self, quantization: Quantization | None, sources: Iterable[Source], entries: Entries
    ) -> None:
        """ConfigError for settings, or shapes, that cannot be read."""
        self._packings: dict[str, Packing] = {}
        self.facts: dict[str, Any] = {}
        """What a fingerprint has to know beside the tensors."""
        self._unread: set[str] = set()
        if quantization is None:
            return
        found = _FORMATS[quantization.method](quantization.config)
        for source in sources:
            if _is_matrix(source):
                packing = found.find(source.tensor, source.shape, entries)
                if packing is not None:
                    self._packings[source.tensor] = packing
                    self._unread.update(packing.unread)
        settings = {key: value for key, value in asdict(found).items() if key != "where"}
        self.facts = {"quantization": [quantization.method, settings]}

    def __contains__(self, tensor: str) -> bool:
        """Whether the checkpoint has others in the place of a source's tensor."""
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
        # AutoGPTQ gave a bias to each of its modules.
        biases = {f"{module_of(tensor)}.bias" for tensor in self._packings} - shapes.keys()
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
        return in_order(packing.make(tensors, dtype), source, packing.rows)

    def first_tensor(self, source: Source) -> str:
        """Of those in the place of a source's, for messages."""
        return next(iter(self._packings[source.tensor].parts.values())).tensor


NONE_PACKED: Final = Packings(None, (), {})
"""Of checkpoints that are not quantised."""


def _is_matrix(source: Source) -> bool:
    """Whether rows are multiplied with the parameter, or tokens looked up in it; norms are applied to each number."""
    is_weight = source.parameter in ("embed", "lm_head") or source.parameter.endswith(".weight")
    return is_weight and len(source.shape) > 1
