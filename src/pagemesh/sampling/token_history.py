"""Which tokens a request has seen and how often it generated them, for its penalties. No torch.

Kept in flat arrays of distinct tokens that grow by at most one entry per generated token, so that a
step makes tensors of them by copying memory, and never walks the tokens again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class TokenHistory:
    """Distinct tokens of a prompt and of the output behind it."""

    def __init__(self, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int]) -> None:
        self.seen_ids = array("q", dict.fromkeys(prompt_token_ids))
        """Distinct tokens of prompt and output, int64."""
        self.output_ids = array("q")
        """Distinct tokens of the output, int64."""
        self.output_counts = array("q")
        """How often each of them is in the output, int64."""
        self._seen = set(self.seen_ids)
        self._places: dict[int, int] = {}
        for token_id in output_token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Count the output's next token."""
        if token_id not in self._seen:
            self._seen.add(token_id)
            self.seen_ids.append(token_id)
        place = self._places.setdefault(token_id, len(self.output_ids))
        if place == len(self.output_ids):
            self.output_ids.append(token_id)
            self.output_counts.append(0)
        self.output_counts[place] += 1
