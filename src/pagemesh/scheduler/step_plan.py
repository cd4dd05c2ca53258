"""A step in the making: a token budget and what was put into it; and which requests are in steps not yet computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pagemesh.scheduler.batch import (
    UNKNOWN_TOKEN,
    Batch,
    ExportedChunk,
    PromptTargets,
    ScheduledSequence,
)
from pagemesh.scheduler.limits import StopRules
from pagemesh.scheduler.request import Request

_UNKNOWN: Final = (UNKNOWN_TOKEN,)


class StepPlan:
    """Sequences of the next batch, and the tokens that still fit in."""

    def __init__(
        self, num_tokens: int, stop_rules: StopRules, *, cuts_prompts: bool = True
    ) -> None:
        """`num_tokens` is the budget; prompts that are not cut must fit into it."""
        self.sequences: list[ScheduledSequence] = []
        self.requests: list[Request] = []
        """Whose they are."""
        self.exports: list[ExportedChunk] = []
        self._num_sampled = 0
        self._num_tokens_left = num_tokens
        self._stop_rules = stop_rules
        self._cuts_prompts = cuts_prompts

    @property
    def is_full(self) -> bool:
        """Whether not one more token fits in."""
        return self._num_tokens_left == 0

    def has_room(self, request: Request) -> bool:
        """Whether a request that begins now could have tokens computed: any, or all of its prompt."""
        num_tokens = 1 if self._cuts_prompts else request.num_tokens
        return num_tokens <= self._num_tokens_left

    def add(self, request: Request) -> None:
        """Compute as many of the request's missing tokens as fit in; its blocks must cover them.

        When no known token is missing, that is the one in flight.
        """
        num_left = self._num_tokens_left
        if num_left == 0:
            return
        spec, token_ids, vector = request.spec, request.token_ids, request.vector
        start, end = request.num_launched_tokens, len(token_ids)
        is_known = start < end
        is_sampled = vector is None and end - start <= num_left
        end = min(end, start + num_left) if is_known else start + 1
        sampling, constraint = spec.sampling, request.constraint
        suppressed: tuple[int, ...] = ()
        if is_sampled and (sampling.min_tokens or constraint is not None):
            # Asked only where there can be any: most requests have none, and hundreds are in a step.
            suppressed = self._stop_rules.suppressed(request, int(not is_known))
        sequence = ScheduledSequence(
            request.request_id,
            token_ids[start:end] if is_known else _UNKNOWN,
            start,
            request.block_ids,
            sampling if is_sampled else None,
            suppressed,
            request.rules if is_sampled else None,
            constraint if is_sampled else None,
            None if vector is None else vector.wanted(start, end),
            previous_row=None if is_known else request.sampled_row,
        )
        if sampling.prompt_logprobs is not None:
            targets = _prompt_targets(request, start, end, sampling.prompt_logprobs)
            sequence = sequence._replace(prompt_targets=targets)
        self.sequences.append(sequence)
        self.requests.append(request)
        if spec.hold_blocks:
            num_exported = min(end, request.num_given_tokens)
            self.exports.append(ExportedChunk(request.request_id, num_exported, end - start))
        request.num_in_flight += 1
        request.num_launched_tokens = end
        if is_sampled:
            request.sampled_row = self._num_sampled
            self._num_sampled += 1
        self._num_tokens_left = num_left - (end - start)


def _prompt_targets(request: Request, start: int, end: int, num_top: int) -> PromptTargets | None:
    """Of the chunk [start, end): what is behind its tokens in the prompt and was not scored yet."""
    first = max(start, request.num_skippable_tokens)
    token_ids = request.token_ids[first + 1 : end + 1]
    return PromptTargets(first - start, token_ids, num_top) if token_ids else None


MAX_IN_FLIGHT: Final = 2
"""A batch that is computed, and the one behind it: only of the first may tokens be unknown."""


class InFlightSteps:
    """Batches in the order of their launches, in which they are completed.

    A request stays itself in here whatever becomes of it meanwhile; its id may be somebody else's by then.
    """

    def __init__(self) -> None:
        self._requests: deque[Sequence[Request]] = deque()

    def check_room(self) -> None:
        """Assert that one more batch may be planned."""
        assert len(self._requests) < MAX_IN_FLIGHT, "too many steps are in flight"

    def launch(self, requests: Sequence[Request]) -> None:
        """A batch was planned, whose sequences are theirs; none for an empty one."""
        if requests:
            self._requests.append(requests)

    def complete(self, batch: Batch) -> Sequence[Request]:
        """The first batch was computed: whose its sequences are, in their order."""
        requests = self._requests.popleft() if batch.sequences else ()
        for request in requests:
            request.num_in_flight -= 1
        return requests
