"""What the loop asks of a runner: a step is launched, sampled and read, and tells of its layers. No torch.

A message about layers says nothing that is worth sending until about as much KV is there as one part on the wire
carries: layers are grouped by that. The step's last layer is not among them: it is told when the step has
succeeded, so that whoever receives layers has whole tokens only of steps that did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from pagemesh.core.kv import KvLayout
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

    def launch(self, batch: Batch, progress: LayerProgress | None = None) -> PendingStep:
        """Have the device write the batch's KV and compute its logits; does not wait for it.

        The batch's lists, block tables among them, are read before this returns: they change later. What
        fails one sequence alone is among the errors of the result. What `progress` asks for is told as soon
        as that KV can be read through `KvAccess`, or not at all where the device cannot tell.
        """
        ...


def compute_step(runner: Runner, batch: Batch) -> StepResult:
    """Launch a batch and wait for it; for those who have nothing else to do meanwhile."""
    step = runner.launch(batch)
    step.sample()
    return step.result()


MIN_GROUP_BYTES: Final = 1024 * 1024
"""KV of a group of layers; what parts on the wire carry at most (`pagemesh.kv_transfer.frames`)."""

MAX_GROUPS: Final = 16
"""Messages of a step: with more, wide models would interrupt themselves without sending anything sooner
than the network takes it."""


@dataclass(frozen=True, slots=True)
class LayerProgress:
    """Asks a runner to say how far a batch has got."""

    num_layers: frozenset[int]
    """Told is when the KV of the whole batch is in the first n layers, for each n of these, ascending."""

    tell: Callable[[int], None]
    """With that n; takes little time and raises nothing. One call at a time, from any thread, also when
    the batch has failed meanwhile."""


def watched_layers(layout: KvLayout, num_tokens: int) -> frozenset[int]:
    """The layers to tell of in a step that computes so many tokens of exports; none for a short one."""
    bytes_per_layer = num_tokens * layout.num_bytes_per_layer // layout.block_size
    num_grouped = max(
        1, _ceil_div(MIN_GROUP_BYTES, bytes_per_layer), _ceil_div(layout.num_layers, MAX_GROUPS)
    )
    return frozenset(range(num_grouped, layout.num_layers, num_grouped))


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
