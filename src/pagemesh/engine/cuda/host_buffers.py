"""The host's memory that an engine on a GPU copies from and to: swap space, and slots for KV."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import structlog
import torch

from pagemesh.core.kv import BlockLayout
from pagemesh.engine.accelerator import Accelerator
from pagemesh.errors import ConfigError
from pagemesh.kv_memory.staged import map_slots, staging_area

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostBuffers:
    """Memory to be pinned, uint8."""

    swap_space: torch.Tensor
    """[swap blocks, bytes of a block]."""

    slots: torch.Tensor
    """[slots, bytes], see `staged_kv`."""

    pinned: list[torch.Tensor] = field(default_factory=list)
    """Those of them that the device copies from and to by itself."""

    @classmethod
    def reserve(cls, layout: BlockLayout, num_swap_blocks: int, kv_descriptor: int | None) -> Self:
        """The slots lie in the memory behind the descriptor; ConfigError when there is not so much."""
        num_bytes = num_swap_blocks * layout.num_bytes
        try:
            swap_space = torch.from_numpy(np.zeros(num_bytes, np.uint8))
        except (MemoryError, ValueError) as error:
            raise ConfigError(
                f"the swap space of {num_bytes / 2**30:g} GiB (--swap-space) cannot be reserved: {error}"
            ) from error
        slots = torch.from_numpy(map_slots(staging_area(layout), kv_descriptor))
        return cls(swap_space.view(num_swap_blocks, layout.num_bytes), slots)

    def pin(self, accelerator: Accelerator) -> None:
        """Have the device copy from and to it by itself.

        Where the system does not allow that, all copies go through memory of the driver's, and the host waits
        for them: slow, but right.
        """
        for memory in (self.slots, self.swap_space):
            try:
                if memory.nbytes:
                    accelerator.adopt(memory)
                    self.pinned.append(memory)
            except RuntimeError as error:
                log.warning("memory cannot be pinned", num_bytes=memory.nbytes, error=str(error))

    def unpin(self, accelerator: Accelerator) -> None:
        """Undo it."""
        while self.pinned:
            accelerator.abandon(self.pinned.pop())
