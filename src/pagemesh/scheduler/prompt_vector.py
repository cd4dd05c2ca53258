"""From a prompt's hidden states, as chunks bring them, to the one vector that is asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagemesh.core.engine import Pooling

_SMALLEST_LENGTH = 1e-12
"""Vectors shorter than this are divided by it instead of by their length, as torch's normalize does."""


class PromptVector:
    """The pooled hidden states of one request's prompt.

    A mean is a sum in float64, token by token in the prompt's order, so that it does not depend on how
    the prompt was cut into chunks. It outlives preemption: a token is summed once.
    """

    def __init__(self, pooling: Pooling, num_tokens: int) -> None:
        """For a prompt of `num_tokens` tokens."""
        self._pooling = pooling
        self._num_tokens = num_tokens
        self._num_pooled = 0
        self._sum: npt.NDArray[np.float64] | None = None

    @property
    def num_skippable_tokens(self) -> int:
        """Leading tokens that need not be computed where their KV is there already."""
        return self._num_tokens - 1 if self._pooling.kind == "last" else self._num_pooled

    def wanted(self, start: int, end: int) -> range | None:
        """Indices in the chunk [start, end) of the tokens whose hidden states are wanted, if any are."""
        first = max(start, self.num_skippable_tokens)
        if self._pooling.kind == "cls":
            end = min(end, 1)
        return range(first - start, end - start) if first < end else None

    def add(self, states: npt.NDArray[np.float32]) -> None:
        """Take the states [N, hidden] that were wanted of a chunk."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], np.float64)
        for state in states:
            self._sum += state
        self._num_pooled += len(states)

    def result(self) -> bytes:
        """The vector, float32, little-endian; all wanted states must have been added."""
        assert self._sum is not None, "no hidden state was added"
        vector = self._sum / self._num_pooled
        if self._pooling.normalize:
            vector /= max(float(np.sqrt(np.dot(vector, vector))), _SMALLEST_LENGTH)
        return vector.astype("<f4").tobytes()
