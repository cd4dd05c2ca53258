"""Whether the KV that a step writes is finite: found out before anybody else can read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.errors import InternalError, PagemeshError


class KvProbe:
    """Looks at chunks from which nothing is sampled yet. Of others the logits tell: their token attends to all.

    The last layer tells of all: a token attends to itself, so that what is not finite in one layer of its
    keys and values is carried into every later one.
    """

    def __init__(self, chunks: Sequence[tuple[str, int, int]]) -> None:
        """Of each chunk its request, its first token among all of the step, and the one behind its last."""
        self._chunks = chunks
        self._sums: torch.Tensor | None = None

    @property
    def sums(self) -> torch.Tensor:
        """Of each token's keys and values, float32 [T]; wherever these are."""
        assert self._sums is not None, "there was no forward pass"
        return self._sums

    def look(self, keys_values: torch.Tensor) -> None:
        """Take note of the last layer's keys and values, [T, 2 · kv heads, head_dim], as they were before they
        were stored: FP8 has no infinities."""
        self._sums = keys_values.flatten(1).sum(1, dtype=torch.float32)

    def take(self, sums: torch.Tensor) -> None:
        """Take note of what another one, which looked at the same tokens, has found."""
        self._sums = sums

    def errors(self, sums: npt.NDArray[np.float32]) -> Mapping[str, PagemeshError]:
        """By request id, of what `sums` was."""
        if np.isfinite(sums).all():
            return {}
        return {
            request_id: InternalError(
                f"the model gave keys and values that are not finite for {request_id}",
                reason="KV_NOT_FINITE",
            )
            for request_id, first, end in self._chunks
            if not np.isfinite(sums[first:end]).all()
        }
