"""A step of a device that computes as it is told to, so that nothing ever has to be waited for: the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.engine.step_rows import Head, StepRows
from pagemesh.sampling.sampler import HostSampler, sample
from pagemesh.scheduler.batch import StepResult


class ComputedStep:
    """Implements `PendingStep`; its hidden states are there from the start."""

    def __init__(
        self, rows: StepRows, hidden: torch.Tensor, head: Head, places: Sequence[int]
    ) -> None:
        """From hidden states [R, hidden] of the rows; `places` has the batch's order, see `StepRows`."""
        self._rows = rows
        self._hidden: torch.Tensor | None = hidden
        self._head = head
        self._places = places
        self._result = StepResult()

    @torch.inference_mode()
    def sample(self) -> None:
        rows, hidden = self._rows, self._hidden
        assert hidden is not None, "it was sampled"
        # The step is kept for the next one, which need not have memory for both.
        self._hidden = None
        prompt_logprobs, errors = rows.score(hidden, self._head, HostSampler()).read()
        if rows.probe is not None:
            errors = {**rows.probe.errors(rows.probe.sums.numpy()), **errors}
        pooled = rows.pooled(hidden)
        states, pooling_errors = rows.states(None if pooled is None else pooled.numpy())
        errors |= pooling_errors
        if not rows.sampled:
            self._result = StepResult((), {}, prompt_logprobs, states, errors)
            return
        samples = sample(self._head(hidden[: len(rows.sampled)]), rows.sampled)
        token_ids = [samples.token_ids[place] for place in self._places]
        errors |= samples.errors
        self._result = StepResult(token_ids, samples.logprobs, prompt_logprobs, states, errors)

    def result(self) -> StepResult:
        return self._result
