"""What became of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Record:
    """One request. Times are seconds of time.perf_counter()."""

    due: float
    """When it was to be sent."""

    sent: float | None = None
    """When it was."""

    begin: float = 0.0
    """When its latencies begin: when it was due, and with a limit of requests under way when it was sent."""

    piece_times: list[float] = field(default_factory=list)
    """When pieces with tokens came; several tokens may be in one."""

    end: float = 0.0
    """When the last piece came, or the failure."""

    text: str = ""
    """What was answered."""

    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    """Of the prompt, those that came out of a cache. As the server counts them all; None when it did not say."""

    is_finished: bool = False
    """Whether the server said that the answer is whole."""

    error: str = ""
    """Why it failed; empty when it did not, or as long as it is under way."""

    @property
    def is_good(self) -> bool:
        """Whether there is a whole answer."""
        return self.is_finished and not self.error

    @property
    def is_over(self) -> bool:
        """Whether it succeeded or failed; else it was cut off by the end of the measurement."""
        return self.is_finished or bool(self.error)

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.piece_times[0] - self.begin if self.piece_times else 0.0

    @property
    def itls(self) -> list[float]:
        """Seconds between two pieces."""
        return [after - before for before, after in pairwise(self.piece_times)]

    @property
    def e2el(self) -> float:
        """Seconds to the end."""
        return self.end - self.begin

    @property
    def queue_time(self) -> float:
        """Seconds for which it waited here because too many were under way, or the client was late."""
        return max(0.0, (self.due if self.sent is None else self.sent) - self.due)
