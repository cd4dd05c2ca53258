"""How long an engine takes for prompts: the numbers that it measured, and what they predict. Plain Python."""

from __future__ import annotations

from typing import NamedTuple


def num_pairs(num_tokens: int, num_held_tokens: int) -> int:
    """Pairs of a token to compute and one that it attends to, itself included, behind a held prefix."""
    return num_tokens * num_held_tokens + num_tokens * (num_tokens + 1) // 2


class PrefillRate(NamedTuple):
    """What prompts cost an engine at present. All zeros: nothing was measured yet."""

    seconds_per_token: float = 0.0
    """What each token costs by itself."""

    seconds_per_pair: float = 0.0
    """What each pair of a token and one that it attends to costs, see `num_pairs`."""

    seconds_per_step: float = 0.0
    """What each engine step costs besides, with the decodes that run beside the prompt now."""

    num_tokens_per_step: int = 0
    """Most tokens of prompts in one step; 0 when nothing was measured."""

    num_pairs_per_token: float = 0.0
    """Mean of the prompts that were computed lately, for tokens of which no more is known."""

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self.num_tokens_per_step > 0

    def seconds(self, num_tokens: int, num_held_tokens: int) -> float | None:
        """Time to compute the last `num_tokens` of a prompt, behind a prefix of `num_held_tokens`.

        None when nothing was measured.
        """
        return self._seconds(num_tokens, num_pairs(num_tokens, num_held_tokens))

    def queue_seconds(self, num_tokens: int) -> float | None:
        """Time for tokens of prompts of which no more is known; None when nothing was measured."""
        return self._seconds(num_tokens, num_tokens * self.num_pairs_per_token)

    def _seconds(self, num_tokens: int, pairs: float) -> float | None:
        if not self.is_known:
            return None
        num_steps = -(-num_tokens // self.num_tokens_per_step)
        return (
            num_tokens * self.seconds_per_token
            + pairs * self.seconds_per_pair
            + num_steps * self.seconds_per_step
        )
