"""AWQ (Lin et al. 2023, https://arxiv.org/abs/2306.00978) as AutoAWQ writes it for its GEMM kernels.

`qweight` int32 [in, out / 8] has the codes of 8 outputs in a word, `qzeros` int32 [groups, out / 8] their zero points,
`scales` [groups, out] what both are multiplied with. Within a word even outputs come before odd ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from pagemesh.kernels.linear.packed import GroupInt, pack_halves
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import (
    FLOATS,
    Entries,
    PackedPart,
    Packing,
    check_divides,
    check_words,
    codes_of_words,
    module_of,
    read_group_size,
)

_PER_WORD: Final = 8
_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of 8 outputs is."""


@dataclass(frozen=True, slots=True)
class Awq:
    """See `Format`. A matrix is quantised where the checkpoint has no floats of it."""

    group_size: int | None
    """Inputs that share a scale; None for all of a row."""

    where: str
    """The settings' place, for messages."""

    @classmethod
    def read(cls, config: ConfigJson) -> Awq:
        """ConfigError for settings of other kernels' layouts."""
        bits = "w_bit" if config.has("w_bit") else "bits"
        config.require(bits, (4,))
        config.require("zero_point", (True,))
        config.require("version", ("gemm", "GEMM"))
        key = "q_group_size" if config.has("q_group_size") else "group_size"
        return cls(read_group_size(config, key), config.where)

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        if tensor in entries or len(shape) != 2:
            return None
        num_outputs, num_inputs = shape
        group_size = self.group_size or num_inputs
        check_divides(group_size, num_inputs, tensor, self.where)
        check_words(num_outputs, _PER_WORD, "outputs", tensor, self.where)
        num_words, num_groups = num_outputs // _PER_WORD, num_inputs // group_size
        module = module_of(tensor)
        parts = {
            "codes": PackedPart(f"{module}.qweight", (num_inputs, num_words), ("I32",)),
            "zeros": PackedPart(f"{module}.qzeros", (num_groups, num_words), ("I32",)),
            "scales": PackedPart(f"{module}.scales", (num_groups, num_outputs), FLOATS),
        }

        def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> GroupInt:
            return GroupInt(
                dtype=dtype,
                codes=pack_halves(_by_output(tensors["codes"]).contiguous()),
                scales=tensors["scales"].t().contiguous(),
                bits=4,
                group_size=group_size,
                zero_points=_by_output(tensors["zeros"]).contiguous(),
            )

        return Packing(parts, make)


def _by_output(words: torch.Tensor) -> torch.Tensor:
    """uint8 [out, n] of int32 [n, out / 8]."""
    runs = codes_of_words(words, 4).view(*words.shape, _PER_WORD)
    return runs[..., torch.tensor(_ORDER, device=words.device)].flatten(1).t()
