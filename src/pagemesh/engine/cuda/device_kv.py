"""What a runner needs of the KV memory on its device, and of whoever moves blocks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from pagemesh.core.kv import BlockLayout
from pagemesh.scheduler.batch import BlockMoves


class DeviceKv(Protocol):
    """The KV memory on a device."""

    @property
    def layout(self) -> BlockLayout:
        """Shape of its blocks."""
        ...

    @property
    def num_blocks(self) -> int:
        """How many there are."""
        ...

    @property
    def layers(self) -> Sequence[torch.Tensor]:
        """Per layer: [2 (keys, values), block, slot, kv head, head_dim]."""
        ...


class Mover(Protocol):
    """Copies KV blocks."""

    def move(self, moves: BlockMoves) -> None:
        """See `Runner.move`. Called within `Accelerator.computing`: the steps launched so far are in front
        on torch's current stream, those that rely on the moves come behind."""
        ...
