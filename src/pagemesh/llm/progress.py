"""A line that says how far a call is, and how fast."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

_INTERVAL_S = 0.1


class Progress:
    """A bar over the prompts of a call, with the rates of tokens read and generated; a context."""

    def __init__(self, num_prompts: int, *, shown: bool) -> None:
        # Here, because only whoever looks at a bar needs it.
        from tqdm.auto import tqdm

        self._bar = tqdm(
            total=num_prompts,
            desc="Processed prompts",
            unit="prompt",
            dynamic_ncols=True,
            disable=not shown,
        )
        self._started = self._written = time.perf_counter()
        self._num_read = 0
        self._num_generated = 0

    def add(self, num_generated_tokens: int, num_prompt_tokens: int | None) -> None:
        """Count tokens of an answer and, once all of a prompt's answers have ended, the prompt's."""
        self._num_generated += num_generated_tokens
        if num_prompt_tokens is not None:
            self._num_read += num_prompt_tokens
            self._bar.update()
        now = time.perf_counter()
        if now - self._written >= _INTERVAL_S:
            self._written = now
            self._show(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._show(time.perf_counter())
        self._bar.close()

    def _show(self, now: float) -> None:
        seconds = max(now - self._started, 1e-9)
        self._bar.set_postfix_str(
            f"tokens/s in {self._num_read / seconds:.0f}, out {self._num_generated / seconds:.0f}"
        )
