"""A step's tokens on the device, of which some are known to the device alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

KNOWN = -1
"""In place of a row, for tokens that the host knows."""


class LastTokens:
    """What the step before sampled: on the device by rows, on the host where each row is in its batch."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._token_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._places: Sequence[int] = ()

    def keep(self, token_ids: torch.Tensor, places: Sequence[int]) -> None:
        """Take the tokens, int64 [R], for the next step; `places` has their rows in the batch's order."""
        self._token_ids[: len(token_ids)].copy_(token_ids)
        self._places = places

    def rows(
        self, num_tokens: int, unknown: Sequence[int], previous: Sequence[int]
    ) -> npt.NDArray[np.int64]:
        """For each of a step's first tokens its row, or KNOWN, int64 [num_tokens].

        `unknown` are the indices of the tokens that were not known, `previous` where they are among the
        tokens sampled before, in their batch's order.
        """
        rows = np.full(num_tokens, KNOWN, np.int64)
        rows[unknown] = [self._places[index] for index in previous]
        return rows

    def fill(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The token ids, int64 [N], with those from rows, int64 [N], where there is one."""
        kept = self._token_ids.index_select(0, rows.clamp(min=0))
        return torch.where(rows == KNOWN, token_ids, kept)
