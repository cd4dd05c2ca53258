"""What a format of quantised checkpoints says of one matrix: the tensors in its place, and what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.packed import unpack_halves
from pagemesh.kernels.linear.weight import Quantised
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.tensor_files import TensorEntry

FLOATS: Final = ("BF16", "F16", "F32")
"""Types of scales, as safetensors names them."""


class PackedPart(NamedTuple):
    """One of the tensors that stand for a matrix."""

    tensor: str  # its name in the checkpoint
    shape: tuple[int, ...]  # its shape there
    dtypes: tuple[str, ...]  # the types that it may have, as its file names them
    is_blocks: bool = (
        False  # whether it comes as it lies in the file, uint8 [blocks of ggml, bytes]
    )
    is_only_read: bool = False  # whether nothing of it is kept, so that it may be the file's own


Check: TypeAlias = Callable[[torch.Tensor], str | None]
"""What is wrong with a tensor's numbers, as it follows "has the tensor …"; None if nothing is."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a checkpoint has a matrix that it does not have as floats."""

    parts: Mapping[str, PackedPart]
    """By the names that `make` knows them by."""

    make: Callable[[Mapping[str, torch.Tensor], torch.dtype], Quantised]
    """The weight [out, in], or a stack [matrices, out, in], for rows of a type; the tensors have passed the checks,
    and are its own, but for those that are only read."""

    checks: Mapping[str, Check] = field(default_factory=dict)
    """Of small parts, by the same names: they are read, and looked at, before the first weight takes memory."""

    unread: tuple[str, ...] = ()
    """Tensors that are there besides, of which nothing is made."""

    rows: int | None = 0
    """The dimension of the source's shape that becomes the weight's rows; 2 of stacks that are transposed. None where
    `make` puts them into the parameter's order."""

    rounds_rows: bool = False
    """Whether rows of activations become integers, so that no dense weight has its products."""


Entries = Mapping[str, TensorEntry]
"""A checkpoint's tensors by name."""


class Format(Protocol):
    """One way of quantising, with the settings of a checkpoint: a dataclass of values that JSON knows."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        """How this checkpoint has the tensor of this name and shape; None where it has it as floats.

        Reads no tensor. Raises ConfigError for a shape that cannot be had so.
        """
        ...


_LEAST_SCALE: Final = 2.0**-100


def input_scale_part(name: str, entries: Entries) -> PackedPart:
    """The scale of all rows of a module's activations, one number."""
    is_scalar = name in entries and not entries[name].shape
    return PackedPart(name, () if is_scalar else (1,), FLOATS)


def check_input_scale(scale: torch.Tensor) -> str | None:
    """See `Check`: nothing can be divided by others."""
    if _LEAST_SCALE <= float(scale) < torch.inf:
        return None
    return f"with {float(scale):g}, but must have a positive number"


def check_finite(numbers: torch.Tensor) -> str | None:
    """See `Check`."""
    return None if numbers.isfinite().all() else "with values that are NaN or infinite"


def scale_checks(scales: PackedPart) -> dict[str, Check]:
    """Of the part `scales`, where it is the one number of a matrix; where there are more, `Packed.bound` tells."""
    return {"scales": check_finite} if math.prod(scales.shape) == 1 else {}


def module_of(tensor: str) -> str:
    """`model.layers.0.mlp.down_proj` of its weight's name."""
    return tensor.removesuffix(".weight")


def read_bits(config: ConfigJson, key: str) -> int:
    """Of a code; ConfigError for others than 4 and 8."""
    bits = config.integer(key)
    if bits not in (4, 8):
        raise config.bad(key, "4 or 8: nothing else is supported")
    return bits


def read_group_size(config: ConfigJson, key: str) -> int | None:
    """Inputs that share a scale; None for a whole row, which these files write as -1."""
    return None if config.get(key) == -1 else config.integer(key)


def check_divides(group_size: int, num_inputs: int, tensor: str, where: str) -> None:
    """Raise ConfigError unless a row is a number of groups."""
    if num_inputs % group_size:
        raise ConfigError(
            f"{where} has groups of {group_size} inputs, which do not divide the {num_inputs} of {tensor}"
        )


def check_words(number: int, per_word: int, what: str, tensor: str, where: str) -> None:
    """Raise ConfigError unless so many codes fill whole words of 32 bits."""
    if number % per_word:
        raise ConfigError(
            f"{where} packs {per_word} {what} into a number, which does not divide the {number} of {tensor}"
        )


def bytes_of_words(words: torch.Tensor) -> torch.Tensor:
    """int32 [..., n] → uint8 [..., 4 · n].

    AWQ, GPTQ and compressed-tensors have the first code of a word in its lowest bits, and files are little-endian: the
    bytes have codes of 8 bits, and pairs of those of 4, in the order in which `GroupInt` keeps them.
    """
    return words.contiguous().view(torch.uint8)


def codes_of_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., n] → uint8 codes [..., n · 32 / bits]."""
    as_bytes = bytes_of_words(words)
    return as_bytes if bits == 8 else unpack_halves(as_bytes)
