"""How many threads compute a step: all that the worker has, or one when there is too little to share."""

from __future__ import annotations

from typing import Final

import torch

MIN_SHARED_WORK: Final = 1 << 26
"""Multiplications in a layer from which on threads share them.

Below, waking the others takes as long as they save. With a layer of 0.6 million weights, a decode takes
1.5 ms on one thread and 2.4 ms on two, 64 tokens of a prompt 6.5 and 7.1 ms, 512 tokens 61 and 40 ms;
with 1.6 million weights 64 tokens take 16 and 13 ms.
"""

MIN_SHARED_WEIGHTS: Final = 1 << 22
"""Weights of a layer that no core's cache holds: several threads may read them faster than one."""


class StepThreads:
    """Sets torch's threads for each step; belongs to the thread that computes the steps."""

    def __init__(self, num_layer_weights: int) -> None:
        self._num_layer_weights = num_layer_weights
        self._num_threads = self._present = torch.get_num_threads()

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
