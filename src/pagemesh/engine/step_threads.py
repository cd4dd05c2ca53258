"""How many threads compute a step: all that the worker may have, or one when there is too little to share."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.engine.shared_cores import SharedCores

MIN_SHARED_WORK: Final = 1 << 26
"""Multiplications in a layer from which on threads share them.

Below, waking the others takes as long as they save: so it is for 64 tokens of a prompt of the demo model, but not
for 512.
"""

MIN_SHARED_IN_ONE_CALL: Final = 1 << 18
"""Likewise, of a decode that is recorded: its threads are woken once, and none waits for one that lost its core."""

MIN_SHARED_WEIGHTS: Final = 1 << 22
"""Weights of a layer that no core's cache holds: several threads may read them faster than one."""


class StepThreads:
    """Sets torch's threads for each step; belongs to the thread that computes the steps."""

    def __init__(self, num_layer_weights: int, cores: SharedCores | None = None) -> None:
        """With `cores`, as many threads as are granted there; else as many as torch has now."""
        self._num_layer_weights = num_layer_weights
        self._num_threads = torch.get_num_threads()
        self._cores = cores
        self._most = self._num_threads if cores is None else cores.num_cores
        self._present: int | None = self._num_threads

    def use(self, num_tokens: int, *, in_one_call: bool = False) -> None:
        """Prepare for a step of so many tokens, whose kernels may be run in one call."""
        least = MIN_SHARED_IN_ONE_CALL if in_one_call else MIN_SHARED_WORK
        shared = (
            self._num_layer_weights >= MIN_SHARED_WEIGHTS
            or num_tokens * self._num_layer_weights >= least
        )
        wanted = self._most if shared else 1
        self._set(wanted if self._cores is None else self._cores.take(wanted))

    def adjust(self) -> None:
        """Go on with as many threads as are granted now; within a step, where no other thread computes."""
        if self._cores is not None:
            self._set(self._cores.adjust())

    def leave(self) -> None:
        """Have another thread compute the next step."""
        if self._cores is not None:
            self._cores.rest()
        torch.set_num_threads(self._num_threads)
        # What torch uses is each thread's own.
        self._present = None

    def _set(self, num_threads: int) -> None:
        if num_threads != self._present:
            torch.set_num_threads(num_threads)
            self._present = num_threads
