"""A step on its way through the device: launched, sampled, read. What the loop asks of a runner."""

from __future__ import annotations

from typing import Protocol

from pagemesh.engine.layer_watch import LayerWatch
from pagemesh.scheduler.batch import Batch, BlockMoves, StepResult


class PendingStep(Protocol):
    """A batch that was launched: `sample`, then `result`, each called once."""

    def sample(self) -> None:
        """Have the device choose the next tokens, if `launch` did not do so already; does not wait for it.

        Called when all tokens of the steps before are known: the `rules` and `constraint` of the batch's
        sequences, which follow their requests' output, are those of the tokens to choose now.
        """
        ...

    def result(self) -> StepResult:
        """Wait for the step and read what it computed: the one place where the host waits for the device."""
        ...


class Runner(Protocol):
    """Computes batches on a device, one after the other."""

    def move(self, moves: BlockMoves) -> None:
        """Copy KV blocks, in the order of `BlockMoves`, for the steps that are launched later.

        No step in flight uses what is moved, see there. Whoever writes into a block from outside, by
        `KvAccess`, when this has returned, does so behind the moves that take KV out of it.
        """
        ...

    def launch(self, batch: Batch, watch: LayerWatch | None = None) -> PendingStep:
        """Have the device write the batch's KV and compute its logits; does not wait for it.

        The batch's lists, block tables among them, are read before this returns: they change later. What
        fails one sequence alone is among the errors of the result. What `watch` asks for is told as soon
        as that KV can be read through `KvAccess`, or not at all where the device cannot tell.
        """
        ...


def compute_step(runner: Runner, batch: Batch) -> StepResult:
    """Launch a batch and wait for it; for those who have nothing else to do meanwhile."""
    step = runner.launch(batch)
    step.sample()
    return step.result()
