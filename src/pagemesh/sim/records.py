"""What became of each request."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pagemesh.router.routing.ways import Path


class Outcome(enum.Enum):
    """How a request ended; each ends exactly once."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """The router had too many in progress, or nobody could run it."""
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """With its worker, behind the first token or for the second time."""
    ABANDONED = "abandoned"
    """Never sent: the turn in front of it did not complete."""


@dataclass(slots=True)
class Record:
    """One request. Times are seconds since the simulation began, as the client has them."""

    num_prompt_tokens: int
    num_output_tokens: int
    """As asked for."""

    arrived_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float = 0.0
    outcome: Outcome | None = None
    """None as long as it has not ended."""
    num_generated_tokens: int = 0
    """Of which the client got to know."""

    decode_id: str = ""
    """The worker that it was placed on last."""
    prefill_id: str = ""
    path: Path = Path.LOCAL
    """On which its prompt's KV came."""

    num_shared_tokens: int = 0
    """Of the prompt, that an endless cache shared by all would have had."""
    num_available_tokens: int = 0
    """That the index knew of on some worker."""
    num_captured_tokens: int = 0
    """That the index knew of on the chosen ones."""
    num_delivered_tokens: int = 0
    """That were not computed for this request."""

    @property
    def ttft(self) -> float | None:
        """Seconds until the first token; None without one."""
        return None if self.first_token_at is None else self.first_token_at - self.arrived_at

    @property
    def tpot(self) -> float:
        """Seconds per token behind the first one; 0 with one token only."""
        if self.first_token_at is None or self.num_output_tokens < 2:
            return 0.0
        return (self.ended_at - self.first_token_at) / (self.num_output_tokens - 1)
