"""Weights of a quantised checkpoint: which tensors it has in the place of which, and how one becomes a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.weight import Plain, Quantised, Weight, stack_matrices, stack_rows
from pagemesh.models.architectures.architecture import Place, Source
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.awq import Awq
from pagemesh.models.quantization.bitsandbytes import BitsAndBytes
from pagemesh.models.quantization.compressed_tensors import CompressedTensors
from pagemesh.models.quantization.fp8 import Fp8
from pagemesh.models.quantization.ggml import Ggml
from pagemesh.models.quantization.gptq import Gptq
from pagemesh.models.quantization.interface import Entries, Format, Packing, Part
from pagemesh.models.quantization.methods import Quantization
from pagemesh.models.quantization.mxfp4 import Mxfp4
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
            if _is_multiplied(source):
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
        checkpoint.check(
            shapes,
            lambda name: name in self._unread or may_ignore(name),
            {part.tensor: part.dtypes for part in parts},
        )
        return list(shapes)

    def make(
        self, source: Source, bring: Callable[[Part], torch.Tensor], dtype: torch.dtype
    ) -> Quantised:
        """One of them, for rows of a type, with its rows in the parameter's order; `bring` gives a tensor where the
        weight shall be.

        Raises ConfigError for tensors that say nothing, and where an architecture changes a source's numbers.
        """
        packing = self._packings[source.tensor]
        tensors = {role: bring(part) for role, part in packing.parts.items()}
        return _in_order(packing.make(tensors, dtype), source, packing.rows)

    def first_tensor(self, source: Source) -> str:
        """Of those in the place of a source's, for messages."""
        return next(iter(self._packings[source.tensor].parts.values())).tensor


NONE_PACKED: Final = Packings(None, (), {})
"""Of checkpoints that are not quantised."""


def put_together(placed: Sequence[tuple[Place, Plain]]) -> Weight:
    """A weight of its parts and their places: rows of a matrix, matrices of a stack, or rows of these."""
    by_row: dict[int, list[tuple[tuple[int | slice, ...], Plain]]] = {}
    for place, part in placed:
        rows = place[-1] if place else None
        begin = rows.start if isinstance(rows, slice) else 0
        # What is in one tensor for all matrices of a stack is a stack.
        number = tuple(
            n for n in (place[:-1] if isinstance(rows, slice) else place) if n != slice(None)
        )
        by_row.setdefault(begin, []).append((number, part))
    stacked = []
    for _, parts in sorted(by_row.items(), key=lambda item: item[0]):
        numbered = sorted(parts, key=lambda item: item[0])
        is_stack = bool(numbered[0][0])
        stacked.append(stack_matrices([p for _, p in numbered]) if is_stack else numbered[0][1])
    return stack_rows(stacked)


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


def _is_multiplied(source: Source) -> bool:
    """Whether rows are multiplied with the parameter; tables are looked up, norms are applied to each number."""
    is_weight = source.parameter == "lm_head" or source.parameter.endswith(".weight")
    return is_weight and len(source.shape) > 1
