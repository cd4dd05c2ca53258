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
from pagemesh.models.quantization import rounding, ways
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
from pagemesh.models.quantization.torchao import TorchAo
from pagemesh.models.spec import DecoderSpec

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
        self._way: ways.QuantizationWay | None = None
        self.num_bytes = 0
        """Of the weights that were made."""
        if quantization is None:
            return
        found = _FORMATS[quantization.method](quantization.config)
        for source in sources:
            if ways.may_be_packed(source.parameter, source.shape):
                packing = found.find(source.tensor, source.shape, entries)
                if packing is not None:
                    self._packings[source.tensor] = packing
                    self._unread.update(packing.unread)
                    self._biases.add(f"{module_of(source.tensor)}.bias")
        settings = {key: value for key, value in asdict(found).items() if key != "where"}
        self.facts = {"quantization": [quantization.method, settings]}

    @classmethod
    def while_loading(
        cls,
        way: ways.QuantizationWay,
        sources: Iterable[Source],
        spec: DecoderSpec,
    ) -> Packings:
        """Of a dense checkpoint of a model."""
        made, roundings = cls(None, (), {}), way.roundings(spec)
        for source in sources:
            if source.parameter in roundings:
                to = roundings[source.parameter]
                made._packings[source.tensor] = rounding.rounded_packing(source, to)
        made._way, made.facts = way, way.facts
        return made

    def __contains__(self, tensor: str) -> bool:
        """Whether a source's tensor, or what the checkpoint has in its place, becomes a quantised weight."""
        return tensor in self._packings

    @property
    def beside(self) -> frozenset[str]:
        """Names of tensors of a checkpoint of which matrices are made, and of those that are there besides."""
        parts = {part.tensor for each in self._packings.values() for part in each.parts.values()}
        return frozenset(parts | self._unread | self._biases)

    def check(
        self,
        checkpoint: Checkpoint,
        sources: Iterable[Source],
        may_ignore: Callable[[str], bool],
    ) -> list[str]:
        """Names of all tensors that the sources are made of.

        Raises ConfigError for the first that is missing, misshapen, unusable or unexpected, or that is small and has
        numbers that say nothing.
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
        self._check_numbers(checkpoint)
        for name in sorted(biases & checkpoint.entries.keys()):
            if checkpoint.read(name).any():
                raise ConfigError(
                    f"{checkpoint.entries[name].path} has the tensor {name} with other numbers than zeros, which"
                    " config.json has no place for"
                )
        return list(shapes)

    def _check_numbers(self, checkpoint: Checkpoint) -> None:
        """Of the small tensors beside codes."""
        for packing in self._packings.values():
            for role, check in packing.checks.items():
                name = packing.parts[role].tensor
                wrong = check(checkpoint.read(name))
                if wrong is not None:
                    raise ConfigError(
                        f"{checkpoint.entries[name].path} has the tensor {name} {wrong}"
                    )

    def check_experts(
        self, checkpoint: Checkpoint, sources: Iterable[Source], device: torch.device
    ) -> None:
        """Raise ConfigError for experts of a layer that cannot be multiplied together there."""
        firsts: dict[str, tuple[str, bool]] = {}
        for source in sources:
            if not source.place or not isinstance(source.place[0], int):
                continue
            packing = self._packings.get(source.tensor)
            rounds = packing is not None and packing.rounds_rows
            first, first_rounds = firsts.setdefault(source.parameter, (source.tensor, rounds))
            if rounds != first_rounds:
                one, other = (source.tensor, first) if rounds else (first, source.tensor)
                raise ConfigError(
                    f"{checkpoint.where} has input_activations with num_bits = 8 and type = 'int' for {one}, but not for"
                    f" {other}: all experts of a layer must be quantised alike"
                )
            scale = packing.parts.get("input_scale") if packing is not None and rounds else None
            if scale is not None and device.type == "cuda" and source.place[0] > 0:
                raise ConfigError(
                    f"{checkpoint.entries[scale.tensor].path} has the tensor {scale.tensor}: an input_scale for each"
                    " expert (static W8A8) is computed on CPUs alone. Serve it there, or take a checkpoint whose"
                    " activations are quantised dynamically"
                )

    def make(
        self, source: Source, bring: Callable[[PackedPart], torch.Tensor], dtype: torch.dtype
    ) -> Quantised:
        """One of them, for rows of a type, with its rows in the parameter's order; `bring` gives a tensor where the
        weight shall be.

        Raises ConfigError where an architecture changes a source's numbers.
        """
        packing = self._packings[source.tensor]
        tensors = {role: bring(part) for role, part in packing.parts.items()}
        weight = packing.make(tensors, dtype)
        self.num_bytes += weight.num_bytes
        return weight if packing.rows is None else _in_order(weight, source, packing.rows)

    def log_quantised(self, spec: DecoderSpec) -> None:
        """Tell, when all weights are made, what was quantised while the checkpoint was loaded."""
        if self._way is not None:
            rounding.log_rounded(self._way, self.num_bytes, spec)

    def first_tensor(self, source: Source) -> str:
        """Of those in the place of a source's, for messages."""
        return next(iter(self._packings[source.tensor].parts.values())).tensor


def make_packings(
    quantization: Quantization | ways.QuantizationWay | None,
    sources: Iterable[Source],
    entries: Entries,
    spec: DecoderSpec,
) -> Packings:
    """Of a quantised checkpoint, or of a dense one, which may be quantised while it is loaded."""
    if isinstance(quantization, ways.QuantizationWay):
        return Packings.while_loading(quantization, sources, spec)
    return Packings(quantization, sources, entries)


def _in_order(weight: Quantised, source: Source, rows: int) -> Quantised:
    """With its rows in the parameter's order, if the source has another; `rows` is the dimension of the source's
    shape that they are of. ConfigError where it does more than put them in order."""
    if source.convert is None:
        return weight
    num_rows = source.shape[rows]
    numbers = torch.arange(num_rows, device=weight.device)
    order = source.convert(
        numbers.view([-1 if d == rows else 1 for d in range(len(source.shape))])
    ).flatten()
    if order.dtype != torch.int64 or order.sort().values.tolist() != list(range(num_rows)):
        raise ConfigError(
            f"the tensor {source.tensor} is quantised, but this architecture changes its numbers"
        )
    return weight.take_rows(order)


NONE_PACKED: Final = Packings(None, (), {})
"""Of checkpoints that are not quantised."""
