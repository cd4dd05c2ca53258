"""bitsandbytes: LLM.int8() (Dettmers et al. 2022, https://arxiv.org/abs/2208.07339) and the 4 bits of QLoRA (2023,
https://arxiv.org/abs/2305.14314), NF4 and FP4, with or without double quantisation.

8 bits: `weight` int8 [out, in], and `SCB` float32 [out], the largest number of each row, which code 127 stands for. Rows
are multiplied as they are, outliers or not. 4 bits: `weight` uint8 [out · in / 2, 1], an even number in the upper half of
its byte, `weight.absmax` for each run of numbers, `weight.quant_map`, the table, and a JSON object as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.packed import Codebook, GroupInt
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import (
    FLOATS,
    Entries,
    PackedPart,
    Packing,
    check_divides,
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
    if layout.tensor in entries:
        parts["layout"] = layout

    def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> GroupInt:
        if "layout" in tensors and int(tensors["layout"]):
            raise ConfigError(
                f"the tensor {layout.tensor} has {int(tensors['layout'])}, but must have 0, of rows one by one"
            )
        codes = tensors["codes"].view(torch.uint8) ^ 0x80
        scales = (tensors["largest"] / _LARGEST_CODE).unsqueeze(1)
        return GroupInt(dtype, codes, scales, 8, num_inputs, centre=128)

    return Packing(parts, make)


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
        if is_nested:
            nested = entries[f"{self.tensor}.nested_absmax"]
            parts["nested_absmax"] = PackedPart(
                f"{self.tensor}.nested_absmax", nested.shape, ("F32",)
            )
            parts["nested_table"] = PackedPart(f"{self.tensor}.nested_quant_map", (256,), ("F32",))
        return Packing(parts, self._make)

    def _make(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Codebook:
        state = self._read_state(tensors["state"])
        num_outputs, num_inputs = self.shape
        absmax = tensors["absmax"]
        group_size = num_outputs * num_inputs // len(absmax)
        told = (state.get("blocksize"), state.get("shape"))
        if told != (group_size, list(self.shape)):
            raise self._bad_state(f"{told[0]} numbers to a run of {told[1]}")
        if "nested_absmax" in tensors:
            absmax = self._unnest(tensors, state)
        codes = tensors["codes"].view(num_outputs, num_inputs // 2)
        return Codebook(
            dtype,
            # An even input comes first here.
            codes << 4 | codes >> 4,
            absmax.view(num_outputs, -1),
            tuple(tensors["table"].tolist()),
            group_size,
        )

    def _unnest(self, tensors: Mapping[str, torch.Tensor], state: dict[str, Any]) -> torch.Tensor:
        size, offset = state.get("nested_blocksize"), state.get("nested_offset")
        nested, codes = tensors["nested_absmax"], tensors["absmax"]
        if (
            not isinstance(size, int)
            or not isinstance(offset, float)
            or size < 1
            or len(nested) != -(-len(codes) // size)
        ):
            raise self._bad_state(f"nested_blocksize {size} and nested_offset {offset}")
        scales = nested.repeat_interleave(size)[: len(codes)]
        return tensors["nested_table"][codes.int()] * scales + offset

    def _read_state(self, state: torch.Tensor) -> dict[str, Any]:
        try:
            found = json.loads(bytes(state.tolist()))
        except ValueError as error:
            raise self._bad_state(f"no JSON: {error}") from None
        if not isinstance(found, dict):
            raise self._bad_state(f"{found!r}")
        return found

    def _bad_state(self, what: str) -> ConfigError:
        return ConfigError(
            f"the tensor {self.tensor}.{_STATE}… says {what}, which does not fit {self.tensor} of {list(self.shape)}"
        )


def _state_shape(state: str, entries: Entries) -> tuple[int, ...]:
    """What the checkpoint says, within reason."""
    num_bytes = entries[state].shape[0] if state in entries and entries[state].shape else 1
    return (min(num_bytes, _MOST_STATE_BYTES),)
