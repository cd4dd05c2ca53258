"""What a router's log says of requests."""

from __future__ import annotations

from dataclasses import dataclass

from pagemesh.config.environment import require


@dataclass(frozen=True, slots=True)
class RequestLogConfig:
    """Whether the log has lines of each request, and how much of its prompt, under vLLM's names."""

    enable_log_requests: bool = False
    """Log each request with its parameters when it comes, and its token counts when it ends. With --log-level debug,
    and only then, its prompt too."""

    max_log_len: int | None = None
    """Characters of a prompt, and of its token ids the number, that are logged at most; unset, all of them."""

    def __post_init__(self) -> None:
        length = self.max_log_len
        require(length is None or length >= 0, "--max-log-len", length, "0 or more")
