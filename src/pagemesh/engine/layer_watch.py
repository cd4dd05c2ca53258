"""Which layers of an export are told of while a step still computes, and to whom. No torch.

A message says nothing that is worth sending until about as much KV is there as one part on the wire
carries: layers are grouped by that. The step's last layer is not among them: it is told when the step has
succeeded, so that whoever receives layers has whole tokens only of steps that did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pagemesh.core.kv import BlockLayout

MIN_GROUP_BYTES: Final = 1024 * 1024
"""KV of a group of layers; what parts on the wire carry at most (`pagemesh.kvship.parts`)."""

MAX_GROUPS: Final = 16
"""Messages of a step: with more, wide models would interrupt themselves without sending anything sooner
than the network takes it."""


@dataclass(frozen=True, slots=True)
class LayerWatch:
    """Asks a runner to say how far a batch has got."""

    num_layers: frozenset[int]
    """Told is when the KV of the whole batch is in the first n layers, for each n of these, ascending."""

    tell: Callable[[int], None]
    """With that n; takes little time and raises nothing. One call at a time, from any thread, also when
    the batch has failed meanwhile."""


def watched_layers(layout: BlockLayout, num_tokens: int) -> frozenset[int]:
    """The layers to tell of in a step that computes so many tokens of exports; none for a short one."""
    bytes_per_layer = num_tokens * layout.num_bytes_per_layer // layout.block_size
    num_grouped = max(
        1, _ceil_div(MIN_GROUP_BYTES, bytes_per_layer), _ceil_div(layout.num_layers, MAX_GROUPS)
    )
    return frozenset(range(num_grouped, layout.num_layers, num_grouped))


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
