"""bitsandbytes: LLM.int8() (Dettmers et al. 2022, https://arxiv.org/abs/2208.07339) and the 4 bits of QLoRA (2023,
https://arxiv.org/abs/2305.14314), NF4 and FP4, with or without double quantisation.

8 bits: `weight` int8 [out, in], and `SCB` float32 [out], the largest number of each row, which code 127 stands for. Rows
are multiplied as they are, outliers or not. 4 bits: `weight` uint8 [out · in / 2, 1], an even number in the upper half of
its byte, `weight.absmax` for each run of numbers, `weight.quant_map`, the table, and a JSON object as bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.packed import Codebook, GroupInt
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import (
    FLOATS,
    Check,
    Entries,
    PackedPart,
    Packing,
    check_divides,
    check_finite,
    module_of,
)

_STATE: Final = "quant_state.bitsandbytes__"
_KINDS: Final = ("nf4", "fp4")
_LARGEST_CODE: Final = 127
_MOST_STATE_BYTES: Final = 4096
"""Of the JSON object beside a matrix, which takes some hundred."""


@dataclass(frozen=True, slots=True)
class BitsAndBytes:
    """See `Format`. A matrix is quantised where the checkpoint has no floats of it."""

    bits: int

    where: str
    """The settings' place, for messages."""

    @classmethod
    def read(cls, config: ConfigJson) -> BitsAndBytes:
        """ConfigError unless it is one of the two."""
        is_8, is_4 = config.flag("load_in_8bit", False), config.flag("load_in_4bit", False)
        if is_8 == is_4:
            raise config.bad("load_in_4bit", "true, or load_in_8bit, and not both")
        config.require("bnb_4bit_quant_storage", ("uint8",))
        return cls(8 if is_8 else 4, config.where)

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        entry = entries.get(tensor)
        if len(shape) != 2 or (entry is not None and entry.dtype in FLOATS):
            return None
        if self.bits == 8:
            return _int8_packing(tensor, shape, entries)
        return _Halves(tensor, shape, self.where).packing(entries)


def _int8_packing(tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing:
    num_outputs, num_inputs = shape
    parts = {
        "codes": PackedPart(tensor, (num_outputs, num_inputs), ("I8",)),
        "largest": PackedPart(f"{module_of(tensor)}.SCB", (num_outputs,), ("F32",)),
    }
    # Newer releases always write how rows lie, which is 0 of those that are saved.
    layout = PackedPart(f"{module_of(tensor)}.weight_format", (), ("U8",))
    checks: dict[str, Check] = {}
    if layout.tensor in entries:
        parts["layout"] = layout
        checks["layout"] = _check_layout

    def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> GroupInt:
        codes = tensors["codes"].view(torch.uint8) ^ 0x80
        scales = (tensors["largest"] / _LARGEST_CODE).unsqueeze(1)
        return GroupInt(dtype, codes, scales, 8, num_inputs, centre=128)

    return Packing(parts, make, checks)


def _check_layout(layout: torch.Tensor) -> str | None:
    return f"with {int(layout)}, but must have 0, of rows one by one" if int(layout) else None


@dataclass(frozen=True, slots=True)
class _Halves:
    """One matrix of 4 bits."""

    tensor: str
    shape: tuple[int, ...]
    where: str

    def packing(self, entries: Entries) -> Packing:
        num_outputs, num_inputs = self.shape
        absmax = f"{self.tensor}.absmax"
        if absmax not in entries:
            raise ConfigError(f"{self.where}: the checkpoint lacks the tensor {absmax}")
        num_groups = entries[absmax].shape[0] if len(entries[absmax].shape) == 1 else 0
        if not num_groups or num_outputs * num_inputs % num_groups:
            raise ConfigError(
                f"{entries[absmax].path} has the tensor {absmax} with shape {list(entries[absmax].shape)}, which does"
                f" not divide {self.tensor} of {list(self.shape)} into runs"
            )
        check_divides(num_outputs * num_inputs // num_groups, num_inputs, self.tensor, self.where)
        state = next(
            (name for kind in _KINDS if (name := f"{self.tensor}.{_STATE}{kind}") in entries),
            f"{self.tensor}.{_STATE}nf4",
        )
        is_nested = f"{self.tensor}.nested_absmax" in entries
        parts = {
            "codes": PackedPart(self.tensor, (num_outputs * num_inputs // 2, 1), ("U8",)),
            "absmax": PackedPart(absmax, (num_groups,), ("U8",) if is_nested else ("F32",)),
            "table": PackedPart(f"{self.tensor}.quant_map", (16,), ("F32",)),
            "state": PackedPart(state, _state_shape(state, entries), ("U8",)),
        }
        checks: dict[str, Check] = {"table": check_finite}
        num_nested = None
        if is_nested:
            nested = f"{self.tensor}.nested_absmax"
            num_nested = entries[nested].shape[0] if len(entries[nested].shape) == 1 else 1
            parts["nested_absmax"] = PackedPart(nested, (num_nested,), ("F32",))
            parts["nested_table"] = PackedPart(f"{self.tensor}.nested_quant_map", (256,), ("F32",))
            checks["nested_table"] = check_finite
        checks["state"] = partial(self._check_state, num_groups, num_nested)
        return Packing(parts, self._make, checks)

    def _check_state(
        self, num_groups: int, num_nested: int | None, as_bytes: torch.Tensor
    ) -> str | None:
        """`num_nested` scales of so many runs, if they are quantised as well."""
        try:
            state = _state_of(as_bytes)
        except (ValueError, RecursionError):
            return "with no JSON object"
        num_outputs, num_inputs = self.shape
        told = (state.get("blocksize"), state.get("shape"))
        expected = (num_outputs * num_inputs // num_groups, list(self.shape))
        if told != expected:
            return (
                f"with blocksize {told[0]} and shape {told[1]}, which are not those of {self.tensor}: {expected[0]} and"
                f" {expected[1]}"
            )
        if num_nested is None:
            return None
        size, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if (
            type(size) is int
            and size > 0
            and num_nested == -(-num_groups // size)
            and isinstance(offset, float)
            and math.isfinite(offset)
        ):
            return None
        return (
            f"with nested_blocksize {size!r} and nested_offset {offset!r}, which do not fit nested_absmax of"
            f" {num_nested} for {num_groups} runs"
        )

    def _make(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Codebook:
        num_outputs, num_inputs = self.shape
        absmax = tensors["absmax"]
        group_size = num_outputs * num_inputs // len(absmax)
        if "nested_absmax" in tensors:
            absmax = _unnest(tensors)
        codes = tensors["codes"].view(num_outputs, num_inputs // 2)
        return Codebook(
            dtype,
            # An even input comes first here.
            codes << 4 | codes >> 4,
            absmax.view(num_outputs, -1),
            tuple(tensors["table"].tolist()),
            group_size,
        )


def _unnest(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Scales of runs that are quantised as well, float32 [runs]."""
    state, codes = _state_of(tensors["state"]), tensors["absmax"]
    size = min(state["nested_blocksize"], len(codes))
    scales = tensors["nested_absmax"].repeat_interleave(size)[: len(codes)]
    return tensors["nested_table"][codes.int()] * scales + float(state["nested_offset"])


def _state_of(as_bytes: torch.Tensor) -> dict[str, Any]:
    """ValueError or RecursionError for what is no JSON object."""
    found = json.loads(bytes(as_bytes.tolist()))
    if not isinstance(found, dict):
        raise ValueError(f"{found!r} is no object")
    return found


def _state_shape(state: str, entries: Entries) -> tuple[int, ...]:
    """What the checkpoint says, within reason."""
    num_bytes = entries[state].shape[0] if state in entries and entries[state].shape else 1
    return (min(num_bytes, _MOST_STATE_BYTES),)
