"""Codes for the modules of a model of transformers: made of their weights, or those of a checkpoint that stand for them.

Names do not tell: transformers renames and stacks what it reads. Numbers do, all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from transformers.pytorch_utils import Conv1D

from pagemesh.kernels.linear.weight import Quantised, stack_matrices, stack_rows
from pagemesh.models.quantization.interface import module_of
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.ways import QuantizationWay
from pagemesh.models.transformers_backend.experts import (
    ProjectionName,
    StackedExperts,
    projections,
)
from pagemesh.models.transformers_backend.model import matrix_of, replaceable

_SAMPLE_SIDE: Final = 8
"""Rows, and numbers of each, by which the weight of a module is looked up among those of a checkpoint."""

_CHOOSING: Final = frozenset(("gate", "router", "shared_expert_gate", "shared_gate"))
"""What models call modules by whose few numbers experts are chosen or weighted."""


class PlacedCodes(NamedTuple):
    """The codes of a model."""

    packed: Mapping[str, Quantised]
    """By the paths of linear modules and of experts' parameters."""

    left: Mapping[str, str]
    """Why others are floats, by their names in the model, or in the checkpoint."""


def place_codes(model: Any, weights: Mapping[str, Quantised]) -> PlacedCodes:
    """Those of a checkpoint, by the names of its tensors, at the modules whose weights they stand for."""
    by_numbers = _ByNumbers(weights)
    packed: dict[str, Quantised] = {}
    for path, *_ in replaceable(model):
        name = by_numbers.find(matrix_of(model.get_submodule(path)), path)
        if name is not None:
            packed[path] = by_numbers.take(name)
    for experts, projection in projections(model):
        weight = by_numbers.take_experts(experts, projection)
        if weight is not None:
            packed[experts.weight_path(projection)] = weight
    left = {
        name: "of several kinds" if name in by_numbers.unlike else _why_dense(model, name)
        for name in weights
        if name not in by_numbers.taken
    }
    return PlacedCodes(packed, left)


def round_weights(model: Any, way: QuantizationWay) -> PlacedCodes:
    """With the weights of linear modules and experts as their codes stand for. A table that is tied to the head is as
    that is."""
    head = model.get_output_embeddings()
    weights: dict[int, Quantised] = {}
    packed: dict[str, Quantised] = {}
    reasons: dict[int, str] = {}
    for path, *_ in replaceable(model):
        module = model.get_submodule(path)
        matrix, parameter = matrix_of(module), module.weight
        name, shape = "lm_head" if module is head else f"{path}.weight", tuple(matrix.shape)
        chooses = not _CHOOSING.isdisjoint(path.split("."))
        to = None if chooses else way.rounding(name, shape)
        if to is None:
            why = "chooses experts" if chooses else way.why_dense(name, shape)
            reasons[id(parameter)] = why
            continue
        if id(parameter) not in weights:
            weights[id(parameter)] = round_weight(matrix, to, matrix.dtype)
            dense = weights[id(parameter)].dense()
            # Files that a weight lies in are not written to.
            parameter.data = dense.t().contiguous() if isinstance(module, Conv1D) else dense
        packed[path] = weights[id(parameter)]
    for experts, projection in projections(model):
        path, numbers = experts.weight_path(projection), experts.numbers(projection).contiguous()
        name, shape, parameter = f"{path}.weight", tuple(numbers.shape), model.get_parameter(path)
        to = way.rounding(name, shape)
        if to is None:
            reasons[id(parameter)] = way.why_dense(name, shape)
            continue
        packed[path] = weights[id(parameter)] = round_weight(numbers, to, numbers.dtype)
        experts.replace(projection, packed[path].dense())
    left = {
        name: reasons.get(id(parameter)) or _why_dense(model, name)
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and id(parameter) not in weights and not name.endswith("bias")
    }
    return PlacedCodes(packed, left)


def _why_dense(model: Any, name: str) -> str:
    """Why a weight, by its name in a checkpoint or in the model, is multiplied as floats."""
    try:
        module, parameter = model.get_submodule(module_of(name)), model.get_parameter(name)
    except AttributeError:
        return "stacked by transformers"
    if isinstance(module, torch.nn.Embedding):
        return "looked up"
    return "stacked by transformers" if parameter.dim() > 2 else "read by the model's own code"


_Sample = tuple[tuple[int, ...], torch.dtype, bytes]
"""Shape and type of numbers, and some of them."""


class _ByNumbers:
    """The quantised weights of a checkpoint, found by what they stand for; and which of them were of use."""

    def __init__(self, weights: Mapping[str, Quantised]) -> None:
        """`weights` by the names of tensors."""
        self._weights = weights
        self._names: dict[_Sample, list[str]] = {}
        self.taken: set[str] = set()
        """Names of weights that rows are multiplied with."""
        self.unlike: set[str] = set()
        """Names of those of experts that kernels would have to multiply with in several ways."""
        for name, weight in weights.items():
            matrix = weight.matrix(0) if len(weight.shape) == 3 else weight
            rows = matrix.take_rows(_sample_rows(matrix)).dense()
            self._names.setdefault(_sample(weight, rows), []).append(name)

    def find(self, numbers: torch.Tensor, path: str) -> str | None:
        """The name of the weight that stands for a matrix or a stack, of a module at a path."""
        matrix = numbers[0] if numbers.dim() == 3 else numbers
        names = self._names.get(_sample(numbers, matrix[_sample_rows(matrix)]), [])
        # Equal floats may have been other codes: its own come first.
        by_module = sorted(names, key=lambda name: not name.startswith(f"{path}."))
        equal = (name for name in by_module if torch.equal(self._weights[name].dense(), numbers))
        return next(equal, None)

    def take(self, name: str) -> Quantised:
        """A weight that has been found."""
        self.taken.add(name)
        return self._weights[name]

    def take_experts(self, experts: StackedExperts, projection: ProjectionName) -> Quantised | None:
        """A projection of all experts, rows in the order of kernels; None unless weights of one
        kind stand for it."""
        whole = self.find(experts.stored(projection), experts.path)
        if whole is not None:
            order, weight = experts.order(projection), self.take(whole)
            return weight if order is None else weight.take_rows(order)
        by_expert = [self._parts(each, experts.path) for each in experts.numbers(projection)]
        if not all(by_expert):
            return None
        names = {name for names in by_expert for name in names}
        matrices = [stack_rows([self._weights[name] for name in names]) for names in by_expert]
        alike = [each for each in matrices if isinstance(each, Quantised)]
        stack = stack_matrices(alike) if len(alike) == len(matrices) else None
        if not isinstance(stack, Quantised):
            self.unlike |= names
            return None
        self.taken |= names
        return stack

    def _parts(self, matrix: torch.Tensor, path: str) -> list[str]:
        """Weights that stand for a matrix: one, or one for its first rows and one for the others; else none."""
        whole = self.find(matrix, path)
        if whole is not None:
            return [whole]
        halves = [self.find(half, path) for half in matrix.chunk(2)]
        return [name for name in halves if name is not None] if None not in halves else []


def _sample_rows(matrix: Quantised | torch.Tensor) -> torch.Tensor:
    return torch.arange(0, matrix.shape[0], max(1, matrix.shape[0] // _SAMPLE_SIDE))


def _sample(whole: Quantised | torch.Tensor, rows: torch.Tensor) -> _Sample:
    """Of numbers, with some out of rows of theirs: those of `_sample_rows` of the first matrix."""
    numbers = rows[:, :: max(1, rows.shape[1] // _SAMPLE_SIDE)].float().contiguous()
    return tuple(whole.shape), whole.dtype, numbers.numpy().tobytes()
