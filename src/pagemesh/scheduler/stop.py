"""When a request ends by itself."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.core.request import FinishReason
from pagemesh.scheduler.request import Request


class StopRules:
    """Stop tokens, the model's end-of-sequence tokens and the length limits."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        """The model's own."""

    def reason(self, request: Request) -> FinishReason | None:
        """Why the request ends with its last token, or None when it goes on."""
        if request.constraint is not None and request.constraint.is_over:
            return FinishReason.STOP
        sampling = request.spec.sampling
        if request.num_generated_tokens > sampling.min_tokens:
            token_id = request.token_ids[-1]
            is_eos = token_id in self.eos_token_ids and not sampling.ignore_eos
            if is_eos or token_id in sampling.stop_token_ids:
                return FinishReason.STOP
        if len(request.token_ids) >= request.max_total_tokens:
            return FinishReason.LENGTH
        return None

    def suppressed(self, request: Request, num_unknown: int = 0) -> tuple[int, ...]:
        """Tokens that must not be sampled next: all that would stop the request before min_tokens.

        Next is behind the known tokens and `num_unknown` more.

        An end of sequence is the end of a structured output, so ignoring it means not to sample it.
        """
        sampling = request.spec.sampling
        ignored = sampling.ignore_eos and request.constraint is not None
        ends = self.eos_token_ids if ignored else ()
        if request.num_generated_tokens + num_unknown >= sampling.min_tokens:
            return ends
        return (*self._stop_token_ids(request), *ends)

    def _stop_token_ids(self, request: Request) -> tuple[int, ...]:
        sampling = request.spec.sampling
        if sampling.ignore_eos:
            return sampling.stop_token_ids
        return (*sampling.stop_token_ids, *self.eos_token_ids)
