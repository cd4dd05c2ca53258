"""GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323) as AutoGPTQ and GPTQModel write it.

`qweight` int32 [in · bits / 32, out] has the codes of several inputs in a word, `qzeros` int32 [groups, out · bits / 32]
zero points, less 1 in the first version of the format, `scales` [groups, out], and `g_idx` int32 [in] the group of each
input, which is no run of inputs where these were quantised in the order of their activations (act-order, `desc_act`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch

from pagemesh.kernels.linear.packed import GroupInt
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.interface import (
    FLOATS,
    Check,
    Entries,
    PackedPart,
    Packing,
    bytes_of_words,
    check_divides,
    check_words,
    codes_of_words,
    module_of,
    read_bits,
    read_group_size,
)
from pagemesh.models.quantization.name_patterns import fits, read_dynamic


@dataclass(frozen=True, slots=True)
class GptqSettings:
    """Of one matrix."""

    bits: int
    group_size: int | None
    """None for a whole row."""

    symmetric: bool
    """Whether all zero points are the middle of the codes."""

    act_order: bool

    @classmethod
    def read(cls, config: ConfigJson, default: GptqSettings | None = None) -> GptqSettings:
        """ConfigError for other bits; without a default, for what is not there."""
        return cls(
            default.bits if default and not config.has("bits") else read_bits(config, "bits"),
            (
                default.group_size
                if default and not config.has("group_size")
                else read_group_size(config, "group_size")
            ),
            config.flag("sym", default.symmetric if default else True),
            config.flag("desc_act", default.act_order if default else False),
        )


@dataclass(frozen=True, slots=True)
class Gptq:
    """See `Format`. A matrix is quantised where the checkpoint has no floats of it."""

    settings: GptqSettings
    others: tuple[tuple[str, GptqSettings], ...]
    """Of modules whose names these patterns fit, the first that does; see `name_patterns`."""

    zero_offset: int
    """What a zero point in the file lacks."""

    where: str
    """The settings' place, for messages."""

    @classmethod
    def read(cls, config: ConfigJson) -> Gptq:
        """ConfigError for layouts of other kernels."""
        layout = "checkpoint_format" if config.has("checkpoint_format") else "format"
        config.require(layout, ("gptq", "gptq_v2"))
        config.require("is_marlin_format", (False,))
        config.require("pack_dtype", ("int32",))
        settings = GptqSettings.read(config)
        others = tuple(
            (rule.pattern, GptqSettings.read(rule.changes, settings))
            for rule in read_dynamic(config)
            # Others have floats.
            if rule.changes is not None
        )
        is_first = config.get(layout) != "gptq_v2"
        return cls(settings, others, 1 if is_first else 0, config.where)

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        if tensor in entries or len(shape) != 2:
            return None
        module = module_of(tensor)
        settings = next(
            (each for pattern, each in self.others if fits(pattern, (module,), self.where)),
            self.settings,
        )
        num_outputs, num_inputs = shape
        per_word = 32 // settings.bits
        group_size = settings.group_size or num_inputs
        check_divides(group_size, num_inputs, tensor, self.where)
        check_words(num_inputs, per_word, "inputs", tensor, self.where)
        check_words(num_outputs, per_word, "outputs", tensor, self.where)
        num_groups = num_inputs // group_size
        floats, words = FLOATS, ("I32",)
        parts = {
            "codes": PackedPart(f"{module}.qweight", (num_inputs // per_word, num_outputs), words),
            "zeros": PackedPart(f"{module}.qzeros", (num_groups, num_outputs // per_word), words),
            "scales": PackedPart(f"{module}.scales", (num_groups, num_outputs), floats),
        }
        groups = PackedPart(f"{module}.g_idx", (num_inputs,), words)
        if settings.act_order or groups.tensor in entries:
            parts["groups"] = groups
        maker = _Maker(settings.bits, group_size, settings.symmetric, self.zero_offset)
        return Packing(parts, maker.make, group_checks(parts, num_groups))


@dataclass(frozen=True, slots=True)
class _Maker:
    bits: int
    group_size: int
    symmetric: bool
    zero_offset: int

    def make(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> GroupInt:
        zeros = codes_of_words(tensors["zeros"], self.bits) + self.zero_offset
        # A zero point of 0 less 1 is all ones.
        zeros &= (1 << self.bits) - 1
        middle = 1 << (self.bits - 1)
        has_middle = self.symmetric and bool((zeros == middle).all())
        return GroupInt(
            dtype=dtype,
            codes=bytes_of_words(tensors["codes"].t()),
            scales=tensors["scales"].t().contiguous(),
            bits=cast(Literal[4, 8], self.bits),
            group_size=self.group_size,
            centre=middle if has_middle else 0,
            zero_points=None if has_middle else zeros.t().contiguous(),
            input_groups=input_groups(tensors.get("groups"), self.group_size),
        )


def group_checks(parts: Mapping[str, PackedPart], num_groups: int) -> dict[str, Check]:
    """Of the part `groups`, int32 [in], if there is one: whether all of them are there."""

    def check(groups: torch.Tensor) -> str | None:
        least, largest = int(groups.min()), int(groups.max())
        if 0 <= least <= largest < num_groups:
            return None
        return (
            f"with groups from {least} to {largest}, but must have them from 0 to {num_groups - 1}"
        )

    return {"groups": check} if "groups" in parts else {}


def input_groups(groups: torch.Tensor | None, group_size: int) -> torch.Tensor | None:
    """`GroupInt.input_groups` of int32 [in]; None where groups are runs."""
    if groups is None:
        return None
    runs = torch.arange(len(groups), dtype=groups.dtype, device=groups.device) // group_size
    return None if torch.equal(groups, runs) else groups.view(1, -1)
