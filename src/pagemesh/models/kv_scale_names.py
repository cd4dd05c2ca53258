"""Which of a checkpoint's tensors are scales of 8-bit keys and values. No torch."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, Literal, NamedTuple, cast

_NAME: Final = re.compile(
    r"(?:^|\.)layers\.(\d+)\.self_attn\.(?:attn\.|k_proj\.|v_proj\.)?([kv])_scale$"
)


class ScaleName(NamedTuple):
    """What a name says."""

    tensor: str
    layer: int
    part: Literal["k", "v"]


def read_scale_name(tensor: str) -> ScaleName | None:
    """What a tensor's name says, if it is such a scale; KV in a model's own type needs none."""
    match = _NAME.search(tensor)
    return match and ScaleName(tensor, int(match[1]), cast(Literal["k", "v"], match[2]))


def scale_names(tensors: Collection[str]) -> list[ScaleName]:
    """Those of a checkpoint's tensors that are such scales."""
    names = map(read_scale_name, sorted(tensors))
    return [name for name in names if name is not None]
