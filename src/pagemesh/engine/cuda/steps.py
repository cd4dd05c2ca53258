"""Steps on a device that computes beside the host: started kernel by kernel, and read at their end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.accelerator import Accelerator, Event
from pagemesh.engine.cuda.transfers import Download, Transfers
from pagemesh.engine.paged_model import PagedModel, paged_sequences
from pagemesh.engine.runner import LayerProgress
from pagemesh.engine.step_inputs import Head, PromptScores, StepInputs, StepRows
from pagemesh.sampling.sampler import PendingSamples, Sampler
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


class EagerSteps:
    """Brings a step's inputs to the device and runs the model on them; within `Accelerator.computing`."""

    def __init__(
        self,
        model: PagedModel,
        transfers: Transfers,
        last_tokens: LastTokens,
        accelerator: Accelerator,
        timeout: float,
    ) -> None:
        """The device hangs when a step takes longer than `timeout` seconds."""
        self._model = model
        self._transfers = transfers
        self._last_tokens = last_tokens
        self._accelerator = accelerator
        self._timeout = timeout

    def run(
        self, inputs: StepInputs, rows: StepRows, progress: LayerProgress | None
    ) -> torch.Tensor:
        """Hidden states [R, hidden] of the rows; layers are told of when the device has written them."""
        if progress is None:
            return self._forward(inputs, rows, None)
        events = LayerEvents(progress, self._accelerator, self._timeout)
        hidden = self._forward(inputs, rows, events.progress)
        events.follow()
        return hidden

    def _forward(
        self, inputs: StepInputs, rows: StepRows, progress: LayerProgress | None
    ) -> torch.Tensor:
        # Unknown tokens are decodes, which are in front.
        num_mixed = inputs.unknown[-1] + 1 if inputs.unknown else 0
        mixed = self._last_tokens.rows(num_mixed, inputs.unknown, inputs.previous_rows)
        selection = rows.selection()
        selected = () if selection is None else (selection,)
        columns, kept, *needed = self._transfers.upload([inputs.columns, mixed, *selected])
        token_ids, positions, slots = columns
        if num_mixed:
            token_ids[:num_mixed] = self._last_tokens.fill(token_ids[:num_mixed], kept)
        plan = self._model.attention.plan(paged_sequences(inputs.sequences))
        last = needed[0] if needed else None
        return self._model.forward(token_ids, positions, slots, plan, last, progress, rows.probe)


class LayerEvents:
    """One step's: an event behind each layer that is to be told of, and a thread that waits for them.

    The thread ends with the step, and there is none for steps that nobody watches.
    """

    def __init__(self, progress: LayerProgress, accelerator: Accelerator, timeout: float) -> None:
        """A step that takes longer than `timeout` seconds is not told of any more."""
        self._told = progress
        self._accelerator = accelerator
        self._timeout = timeout
        self._events: list[tuple[int, Event]] = []
        self.progress = LayerProgress(progress.num_layers, self._record)
        """For `PagedModel.forward`, within `Accelerator.computing`."""

    def follow(self) -> None:
        """All of the step was asked of the device: tell of each layer when the device has come to it."""
        # A daemon: a step that hangs in the device must not keep the process from exiting.
        threading.Thread(target=self._tell, name="layers", daemon=True).start()

    def _record(self, num_layers: int) -> None:
        self._events.append((num_layers, self._accelerator.record()))

    def _tell(self) -> None:
        for num_layers, event in self._events:
            try:
                self._accelerator.wait(event, self._timeout)
            except Exception:
                # Whoever waits for the step's result finds the same, and says so.
                return
            self._told.tell(num_layers)


KNOWN = -1
"""In place of a row, for tokens that the host knows."""


class LastTokens:
    """What the step before sampled: on the device by rows, on the host where each row is in its batch."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._token_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._places: Sequence[int] = ()

    def keep(self, token_ids: torch.Tensor, places: Sequence[int]) -> None:
        """Take the tokens, int64 [R], for the next step; `places` has their rows in the batch's order."""
        self._token_ids[: len(token_ids)].copy_(token_ids)
        self._places = places

    def rows(
        self, num_tokens: int, unknown: Sequence[int], previous: Sequence[int]
    ) -> npt.NDArray[np.int64]:
        """For each of a step's first tokens its row, or KNOWN, int64 [num_tokens].

        `unknown` are the indices of the tokens that were not known, `previous` where they are among the
        tokens sampled before, in their batch's order.
        """
        rows = np.full(num_tokens, KNOWN, np.int64)
        rows[unknown] = [self._places[index] for index in previous]
        return rows

    def fill(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The token ids, int64 [N], with those from rows, int64 [N], where there is one."""
        kept = self._token_ids.index_select(0, rows.clamp(min=0))
        return torch.where(rows == KNOWN, token_ids, kept)
