"""A step of a device that computes beside the host: asked for all of it, and read at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from pagemesh.engine.cuda.token_inputs import LastTokens
from pagemesh.engine.cuda.transfers import Download, Transfers
from pagemesh.engine.step_rows import Head, PromptScores, StepRows
from pagemesh.sampling.samples import PendingSamples, Sampler
from pagemesh.scheduler.batch import StepResult


class StepSampling(NamedTuple):
    """What all steps of a runner use after their hidden states."""

    working: Callable[[], AbstractContextManager[None]]
    """Within it the device is asked."""

    head: Head
    sampler: Sampler
    transfers: Transfers
    last_tokens: LastTokens


class DeviceStep:
    """Implements `PendingStep`."""

    def __init__(
        self,
        sampling: StepSampling,
        rows: StepRows,
        places: Sequence[int],
        hidden: torch.Tensor | None,
        logits: torch.Tensor | None,
    ) -> None:
        """From hidden states [R, hidden] of the rows, or where all of them sample, logits [R, vocab].

        `places` has the batch's order, see `StepRows`.
        """
        self._tools = sampling
        self._rows = rows
        self._places = places
        self._hidden = hidden
        self._logits = logits
        self._scores: PromptScores | None = None
        self._states: Download | None = None
        self._kv_sums: Download | None = None
        self._samples: PendingSamples | None = None

    def sample(self) -> None:
        with self._tools.working():
            if self._hidden is not None:
                self._use_hidden(self._hidden)
            if self._logits is not None:
                self._samples = self._tools.sampler.launch(self._logits, self._rows.sampled)
                self._tools.last_tokens.keep(self._samples.token_ids, self._places)
            # The next step needs the memory.
            self._hidden = self._logits = None

    def result(self) -> StepResult:
        with self._tools.working():
            scores = PromptScores(()) if self._scores is None else self._scores
            prompt_logprobs, errors = scores.read()
            pooled = None if self._states is None else self._states.read()[0].numpy()
            if self._kv_sums is not None and self._rows.probe is not None:
                kv_sums = self._kv_sums.read()[0].numpy()
                errors = {**self._rows.probe.errors(kv_sums), **errors}
            samples = None if self._samples is None else self._samples.read()
        states, pooling_errors = self._rows.states(pooled)
        errors |= pooling_errors
        if samples is None:
            return StepResult((), {}, prompt_logprobs, states, errors)
        token_ids = [samples.token_ids[place] for place in self._places]
        errors |= samples.errors
        return StepResult(token_ids, samples.logprobs, prompt_logprobs, states, errors)

    def _use_hidden(self, hidden: torch.Tensor) -> None:
        """Ask for everything that is made of hidden states."""
        rows = self._rows
        if rows.probe is not None:
            self._kv_sums = self._tools.transfers.download([rows.probe.sums])
        self._scores = rows.score(hidden, self._tools.head, self._tools.sampler)
        if (pooled := rows.pooled(hidden)) is not None:
            self._states = self._tools.transfers.download([pooled.float()])
        if rows.sampled:
            self._logits = self._tools.head(hidden[: len(rows.sampled)])
