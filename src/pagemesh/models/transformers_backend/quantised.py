"""Reads a model of transformers whose weights are quantised, by its checkpoint or while it is loaded.

transformers gets the floats that codes stand for, under the names that a dense checkpoint has for them, so that it
renames and stacks them as it does those. Linear modules and experts whose weights are then what codes stand for, number
by number, can be multiplied by these codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.weight import Quantised, may_round_rows
from pagemesh.models.architectures.architecture import Source, read_scale_name
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.models.quantization.interface import FLOATS, module_of
from pagemesh.models.quantization.methods import Chosen, Quantization
from pagemesh.models.quantization.parts import Packings
from pagemesh.models.transformers_backend.model import NONE_PACKED
from pagemesh.models.transformers_backend.placing import place_codes, round_weights
from pagemesh.models.transformers_backend.read import Candidate, quietly, read_model


class ReadWeights(NamedTuple):
    """A model with its weights."""

    model: Any  # transformers', of floats
    packed: Mapping[str, Quantised] = NONE_PACKED  # see `PlacedCodes`
    left_dense: tuple[str, ...] = ()  # names that those of all layers share, each with the reason

    @property
    def num_bytes(self) -> int:
        """Of the codes, and of what they are multiplied with."""
        return sum({id(weight): weight.num_bytes for weight in self.packed.values()}.values())

    @property
    def rounds_rows(self) -> bool:
        """Whether a product may take rows of activations as codes of 8 bits."""
        return any(map(may_round_rows, self.packed.values()))


def read_weights(
    folder: Path, candidate: Candidate, dtype: torch.dtype, chosen: Chosen | None
) -> ReadWeights:
    """The model in a type. ConfigError unless every weight is there and fits."""
    if isinstance(chosen, Quantization):
        return _read_quantised(folder, candidate, dtype, chosen)
    model = read_model(folder, candidate.cls, candidate.config, dtype)
    if chosen is None:
        return ReadWeights(model)
    rounded = round_weights(model, chosen)
    return ReadWeights(model, rounded.packed, _told(rounded.left))


def _read_quantised(
    folder: Path, candidate: Candidate, dtype: torch.dtype, quantization: Quantization
) -> ReadWeights:
    cls, config = candidate.cls, candidate.config
    with Checkpoint.open(folder) as checkpoint:
        wanted = list(_sources(cls, config, checkpoint))
        sources = [each.source for each in wanted]
        packings = Packings(quantization, sources, checkpoint.entries)
        packings.check(checkpoint, sources, lambda _: True)
        shapes = {source.parameter: source.shape for source in sources}
        parameters = CheckpointParameters(checkpoint, sources, shapes, dtype, packings=packings)
        tensors: dict[str, Any] = dict(_others(cls, checkpoint, packings, sources))
        weights: dict[str, Quantised] = {}
        for source, is_turned in wanted:
            if source.tensor in packings:
                weight = parameters.weight(source.parameter)
                assert isinstance(weight, Quantised)
                weights[source.tensor] = weight
                tensors[source.tensor] = _Floats(weight, is_turned=is_turned)
        model = read_model(folder, cls, config, dtype, tensors)
    placed = place_codes(model, weights)
    return ReadWeights(model, placed.packed, _told(placed.left))


class _Floats:
    """A tensor as transformers takes it out of a file: it asks for all of it, once, when it has a place for it. So the
    floats of a checkpoint are not all there beside the model."""

    def __init__(self, numbers: Quantised | torch.Tensor, *, is_turned: bool = False) -> None:
        self._numbers = numbers
        self._is_turned = is_turned

    def __getitem__(self, everything: object) -> torch.Tensor:
        if isinstance(self._numbers, torch.Tensor):
            # A copy: the file may change.
            return self._numbers.clone()
        dense = self._numbers.dense()
        return dense.mT.contiguous() if self._is_turned else dense


class _Wanted(NamedTuple):
    """A tensor of a dense checkpoint of a model."""

    source: Source
    is_turned: bool  # whether it has inputs before outputs


def _sources(cls: type[Any], config: Any, checkpoint: Checkpoint) -> Iterator[_Wanted]:
    """Those that this checkpoint has, as floats or quantised; of what it lacks transformers says whether it may."""
    with quietly(checkpoint.where), torch.device("meta"):
        model = cls(config)
        tensors = revert_weight_conversion(model, dict(model.state_dict()))
    turned = {
        f"{path}.weight" for path, module in model.named_modules() if isinstance(module, Conv1D)
    }
    names = {part for name in checkpoint.entries for part in _beginnings(name)}
    for name, tensor in tensors.items():
        is_stack = tensor.dim() == 3 and f"{name}_blocks" in names
        is_there = name in names or module_of(name) in names or is_stack
        if not is_there or not tensor.is_floating_point():
            continue
        shape = tuple(tensor.shape)
        entry = checkpoint.entries.get(name)
        # What quantises them writes outputs before inputs.
        is_turned = name in turned and (entry is None or entry.dtype not in FLOATS)
        parameter = f"{name}.weight" if is_stack and not name.endswith(".weight") else name
        source = Source(name, shape[::-1] if is_turned else shape, parameter)
        yield _Wanted(source, is_turned or is_stack)


def _beginnings(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _others(
    cls: type[Any], checkpoint: Checkpoint, packings: Packings, sources: list[Source]
) -> Iterator[tuple[str, _Floats]]:
    """What is not quantised, with names that only transformers may know. ConfigError for what it would misread."""
    floats = {source.tensor for source in sources if source.tensor not in packings}
    known = packings.beside | {source.tensor for source in sources}
    ignored = [re.compile(each) for each in cls._keys_to_ignore_on_load_unexpected or ()]
    for name, entry in checkpoint.entries.items():
        is_left_out = name in known or read_scale_name(name) is not None
        if name not in floats and (is_left_out or any(each.search(name) for each in ignored)):
            continue
        if entry.dtype not in FLOATS:
            raise ConfigError(
                f"{entry.path} has the tensor {name} of type {entry.dtype}, which config.json has no place for"
            )
        yield name, _Floats(checkpoint.read(name))


def _told(reasons: Mapping[str, str]) -> tuple[str, ...]:
    of_any = {re.sub(r"(?<=\.)\d+(?=\.)", "*", name): why for name, why in reasons.items()}
    return tuple(f"{name} ({why})" for name, why in of_any.items())
