"""MXFP4 (OCP Microscaling Formats 1.0, https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)
as in GPT-OSS: the stacked experts alone, 32 inputs to a scale, which is a power of two.

`…_blocks` uint8 [experts, out, in / 32, 16] and `…_scales` uint8 [experts, out, in / 32], with outputs before inputs,
where the same checkpoint in bfloat16 has them the other way round. Gates and ups alternate in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from pagemesh.kernels.linear.packed import Codebook
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import Entries, PackedPart, Packing, check_divides

_GROUP: Final = 32
_POSITIVE: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TABLE: Final = (*_POSITIVE, *(-number for number in _POSITIVE))
"""Of floats with 2 bits of exponent and 1 of mantissa (e2m1)."""


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """See `Format`. Experts are quantised where the checkpoint has no floats of them; matrices that are not stacked
    never are."""

    where: str
    """The settings' place, for messages."""

    @classmethod
    def read(cls, config: ConfigJson) -> Mxfp4:
        """Nothing is left open: `modules_to_not_convert` names what has floats."""
        return cls(config.where)

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        if tensor in entries or len(shape) != 3:
            return None
        num_experts, num_inputs, num_outputs = shape
        check_divides(_GROUP, num_inputs, tensor, self.where)
        groups = (num_experts, num_outputs, num_inputs // _GROUP)
        parts = {
            "codes": PackedPart(f"{tensor}_blocks", (*groups, _GROUP // 2), ("U8",)),
            "scales": PackedPart(f"{tensor}_scales", groups, ("U8", "F8_E8M0")),
        }
        return Packing(parts, _make, rows=2)


def _make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Codebook:
    # Exponents plus 127 (e8m0): they are kept as they are, at a byte for 32 numbers.
    scales = tensors["scales"].view(torch.float8_e8m0fnu)
    return Codebook(
        dtype=dtype,
        codes=tensors["codes"].flatten(-2),
        scales=scales,
        table=TABLE,
        group_size=_GROUP,
    )
