"""How many threads compute a step: all that the worker has, or one when there is too little to share."""

from __future__ import annotations

from typing import Final

import torch

MIN_SHARED_WORK: Final = 1 << 26
"""Multiplications in a layer from which on threads share them.

Below, waking the others takes as long as they save: so it is for a decode of the demo model, and still
for 64 tokens of a prompt, but not for 512.
"""

MIN_SHARED_WEIGHTS: Final = 1 << 22
"""Weights of a layer that no core's cache holds: several threads may read them faster than one."""


class StepThreads:
    """Sets torch's threads for each step; belongs to the thread that computes the steps."""

    def __init__(self, num_layer_weights: int) -> None:
        self._num_layer_weights = num_layer_weights
        self._num_threads = torch.get_num_threads()
        self._present: int | None = self._num_threads

    def use(self, num_tokens: int) -> None:
        """Prepare for a step of so many tokens."""
        shared = (
            self._num_layer_weights >= MIN_SHARED_WEIGHTS
            or num_tokens * self._num_layer_weights >= MIN_SHARED_WORK
        )
        wanted = self._num_threads if shared else 1
        if wanted != self._present:
            torch.set_num_threads(wanted)
            self._present = wanted

    def leave(self) -> None:
        """Have another thread compute the next step."""
        torch.set_num_threads(self._num_threads)
        # What torch uses is each thread's own.
        self._present = None
