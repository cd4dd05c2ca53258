"""When a request ends by itself."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.engine.interface import FinishReason
from pagemesh.scheduler.request import Request


class StopRules:
    """Stop tokens, the model's end-of-sequence tokens and the length limits."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        """The model's own."""

    def reason(self, request: Request) -> FinishReason | None:
        """Why the request ends with its last token, or None when it goes on."""
        if request.num_generated_tokens > request.spec.sampling.min_tokens and request.token_ids[
            -1
        ] in self._stop_token_ids(request):
            return FinishReason.STOP
        if request.num_tokens >= request.max_total_tokens:
            return FinishReason.LENGTH
        return None

    def suppressed(self, request: Request) -> tuple[int, ...]:
        """Tokens that must not be sampled next: all that would stop the request before min_tokens."""
        if request.num_generated_tokens >= request.spec.sampling.min_tokens:
            return ()
        return self._stop_token_ids(request)

    def _stop_token_ids(self, request: Request) -> tuple[int, ...]:
        sampling = request.spec.sampling
        if sampling.ignore_eos:
            return sampling.stop_token_ids
        return (*sampling.stop_token_ids, *self.eos_token_ids)
