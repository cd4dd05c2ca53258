"""torchao's weights of whole numbers, as its safetensors files have them: `quant_method` `torchao`.

`Int8WeightOnlyConfig`: `_weight_qdata` int8 [out, in], `_weight_scale` [out, groups], or [1, 1] for the whole matrix, and
perhaps `_weight_zero_point`, int8 of the same shape. `Int4WeightOnlyConfig` in its plain layout: `_weight_qdata` int8
[out, in / 2], two codes from -8 on in a byte, `_weight_scale` [in / group, out], and `_weight_zero_point`, the number that
a code of 0 stands for. Other layouts of 4 bits are those of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagemesh.kernels.linear.packed import GroupInt
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import (
    FLOATS,
    Entries,
    PackedPart,
    Packing,
    check_divides,
    check_words,
    module_of,
    scale_checks,
)


@dataclass(frozen=True, slots=True)
class TorchAo:
    """See `Format`. A matrix is quantised where the checkpoint has no floats of it."""

    bits: int

    group_size: int | None
    """Of 4 bits; those of 8 are told by the shape of the scales."""

    where: str
    """The settings' place, for messages."""

    @classmethod
    def read(cls, config: ConfigJson) -> TorchAo:
        """ConfigError for other kinds, and for settings that differ between modules."""
        kind = config.child("quant_type")
        default = None if kind is None else kind.child("default")
        if default is None:
            raise config.bad("quant_type", "an object with a default: nothing else is supported")
        default.require("_type", ("Int8WeightOnlyConfig", "Int4WeightOnlyConfig"))
        data = default.child("_data") or ConfigJson({}, default.where)
        if default.get("_type") == "Int8WeightOnlyConfig":
            return cls(8, None, config.where)
        data.require(
            "int4_packing_format", ("plain", {"_data": "PLAIN", "_type": "Int4PackingFormat"})
        )
        return cls(4, data.integer("group_size", 128), config.where)

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        if tensor in entries or len(shape) != 2:
            return None
        prefix = f"{module_of(tensor)}._weight_"
        if self.bits == 8:
            return self._int8(tensor, prefix, shape, entries)
        return self._int4(tensor, prefix, shape)

    def _int8(self, tensor: str, prefix: str, shape: tuple[int, ...], entries: Entries) -> Packing:
        num_outputs, num_inputs = shape
        scale = entries.get(f"{prefix}scale")
        num_groups = max(1, scale.shape[1]) if scale is not None and len(scale.shape) == 2 else 1
        check_divides(num_groups, num_inputs, tensor, self.where)
        is_whole = scale is not None and scale.shape == (1, 1)
        groups = (1 if is_whole else num_outputs, num_groups)
        parts = {
            "codes": PackedPart(f"{prefix}qdata", (num_outputs, num_inputs), ("I8",)),
            "scales": PackedPart(f"{prefix}scale", groups, FLOATS),
        }
        zeros = PackedPart(f"{prefix}zero_point", groups, ("I8",))
        if zeros.tensor in entries:
            parts["zeros"] = zeros

        def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> GroupInt:
            found = tensors.get("zeros")
            if found is not None:
                found = (found.view(torch.uint8) ^ 0x80).expand(num_outputs, -1).contiguous()
            return GroupInt(
                dtype=dtype,
                codes=tensors["codes"].view(torch.uint8) ^ 0x80,
                scales=tensors["scales"].expand(num_outputs, -1).contiguous(),
                bits=8,
                group_size=num_inputs // num_groups,
                centre=128 if found is None else 0,
                zero_points=found,
            )

        return Packing(parts, make, scale_checks(parts["scales"]))

    def _int4(self, tensor: str, prefix: str, shape: tuple[int, ...]) -> Packing:
        num_outputs, num_inputs = shape
        assert self.group_size is not None
        group_size = self.group_size
        check_words(num_inputs, 2, "inputs", tensor, self.where)
        check_divides(group_size, num_inputs, tensor, self.where)
        groups = (num_inputs // group_size, num_outputs)
        parts = {
            "codes": PackedPart(f"{prefix}qdata", (num_outputs, num_inputs // 2), ("I8", "U8")),
            "scales": PackedPart(f"{prefix}scale", groups, FLOATS),
            "numbers": PackedPart(f"{prefix}zero_point", groups, FLOATS),
        }

        def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> GroupInt:
            return GroupInt(
                dtype=dtype,
                # From two's complement to distances from -8.
                codes=tensors["codes"].view(torch.uint8) ^ 0x88,
                scales=tensors["scales"].t().contiguous(),
                bits=4,
                group_size=group_size,
                centre=8,
                minimums=-tensors["numbers"].t().contiguous(),
            )

        return Packing(parts, make)
