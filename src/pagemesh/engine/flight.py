"""A batch between its launch and its landing. What fails on the way shows when it lands, in its turn."""

from __future__ import annotations

from pagemesh.engine.layer_watch import LayerWatch
from pagemesh.engine.runner import PendingStep, Runner
from pagemesh.errors import InternalError
from pagemesh.scheduler.batch import Batch, StepResult


class Flight:
    """One batch on the device."""

    def __init__(
        self, runner: Runner, batch: Batch, move_seconds: float, watch: LayerWatch | None = None
    ) -> None:
        """Launch the batch, whose moves took so long; see `Runner.launch`."""
        self.batch = batch
        self.move_seconds = move_seconds
        self._step: PendingStep | None = None
        self._error: Exception | None = None
        try:
            self._step = runner.launch(batch, watch)
        except Exception as error:
            # Boundary to the device, like those below.
            self._error = error

    @property
    def has_failed(self) -> bool:
        """Whether it is known already that `result` will raise: no step can build on this one."""
        return self._error is not None

    def sample(self) -> None:
        """See `PendingStep`; after a failure there is nothing to sample."""
        if self._step is None or self._error is not None:
            return
        try:
            self._step.sample()
        except Exception as error:
            self._error = error

    def result(self) -> StepResult:
        """Wait for the batch; raises what it failed with, here or earlier."""
        if self._error is not None:
            raise self._error
        assert self._step is not None, "it was launched"
        result = self._step.result()
        num_sampled = len(result.token_ids)
        num_expected = sum(sequence.sampling is not None for sequence in self.batch.sequences)
        if num_sampled != num_expected:
            raise InternalError(f"{num_sampled} tokens sampled for {num_expected} sequences")
        return result
