"""Computes steps on the CPU: from a batch of plain ids to the next token of every sequence that asks for one.

Owns the KV memory and knows block tables; it does not know requests, queues or prefix caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.paged_model import AttentionMaker, PagedModel, paged_sequences
from pagemesh.engine.recorded_decodes import RecordedDecodes
from pagemesh.engine.runner import LayerProgress, compute_step
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.engine.step_inputs import Head, StepInputs, StepRows, make_step_inputs
from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import make_paged_attention
from pagemesh.kv_memory.memory import KvMemory
from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.sampler import Sampler
from pagemesh.scheduler.batch import Batch, BlockMoves, StepResult


class CpuRunner:
    """Runs batches on one model and one KV cache. One thread at a time, apart from `kv`."""

    def __init__(
        self,
        model: LoadedModel,
        block_size: int,
        num_blocks: int,
        make_attention: AttentionMaker = make_paged_attention,
        kv_descriptor: int | None = None,
        num_swap_blocks: int = 0,
        cores: SharedCores | None = None,
    ) -> None:
        self.kv = KvStorage(model.block_layout(block_size), num_blocks, kv_descriptor)
        """The KV memory; its own, or that behind the descriptor."""
        self.generates = model.generates
        """Whether batches may have sequences that sample."""
        self.causal = model.shape.causal
        """Whether prompts may be computed in pieces."""
        self.works_beside_host = False
        """Whether steps are computed while the host does something else."""
        self._mover = BlockMover(self.kv, num_swap_blocks)
        self._threads = StepThreads(model.shape.num_layer_weights, cores)
        self._model = PagedModel(
            model, self.kv.layout, self.kv.layers, make_attention, self._threads.adjust
        )
        self._decodes = RecordedDecodes(self._model, model.shape.num_layer_weights)
        self._vocab_size = model.vocab_size
        self._sampler = Sampler(model.vocab_size, torch.device("cpu"))
        self._launched: ComputedStep | None = None

    def move(self, moves: BlockMoves) -> None:
        """Copy KV blocks; before the batch that came with the moves is computed."""
        self._mover.move(moves)

    @torch.inference_mode()
    def launch(self, batch: Batch, progress: LayerProgress | None = None) -> ComputedStep:
        """Compute all tokens of the batch and store their KV: everything but the sampling is then done. Requests whose KV or
        logits are not finite are among the errors of the result. Unknown tokens are those that the last launched batch
        sampled. Layers are told of when their KV is written."""
        inputs = make_step_inputs(batch.sequences, self.kv.layout.block_size)
        if inputs.unknown:
            assert self._launched is not None, "the token of a step that never was"
            sampled = self._launched.result().token_ids
            inputs.columns[0, inputs.unknown] = [sampled[row] for row in inputs.previous_rows]
        rows = StepRows(inputs.sequences, self._vocab_size)
        num_tokens = inputs.columns.shape[1]
        in_one_call = rows.are_next_tokens and progress is None and self._decodes.takes(num_tokens)
        self._threads.use(num_tokens, in_one_call=in_one_call)
        places = rows.places(batch.sequences)
        head: Head = self._model.logits
        if in_one_call:
            hidden, head = self._decodes.run(inputs), lambda logits: logits
        else:
            hidden = self._compute(inputs, rows, progress)
        self._launched = ComputedStep(rows, hidden, head, self._sampler, places)
        return self._launched

    def _compute(
        self,
        inputs: StepInputs,
        rows: StepRows,
        progress: LayerProgress | None,
    ) -> torch.Tensor:
        token_ids, positions, slots = torch.from_numpy(inputs.columns)
        plan = self._model.attention.plan(paged_sequences(inputs.sequences))
        selection = rows.selection()
        needed = None if selection is None else torch.from_numpy(selection)
        return self._model.forward(token_ids, positions, slots, plan, needed, progress, rows.probe)

    def dummy_run(self, batch: Batch) -> None:
        """Compute a batch for its cost alone; afterwards it is as if it had never been.

        On any thread, as long as no other one computes. The cache must be empty.
        """
        try:
            compute_step(self, batch)
        finally:
            self._threads.leave()
            self._launched = None
            self.kv.clear()


def num_swap_blocks_for(layout: KvLayout, swap_space_gib: float) -> int:
    """Blocks that fit into the swap space; ConfigError when there is one, but not even for a block."""
    num_blocks = int(swap_space_gib * 2**30) // layout.num_bytes
    if swap_space_gib > 0 and num_blocks < 1:
        raise ConfigError(
            f"--swap-space is {swap_space_gib:g} GiB, but one block of this model takes"
            f" {layout.num_bytes / 2**30:.6f} GiB"
        )
    return num_blocks


class BlockMover:
    """Does a batch's moves over one cache, and owns the swap space."""

    def __init__(self, kv: KvMemory, num_swap_blocks: int) -> None:
        """Reserve the swap space; ConfigError when there is not so much memory."""
        num_layers, _, num_blocks, block_bytes = kv.bytes.shape
        self._cache = kv.bytes.reshape(2 * num_layers, num_blocks, block_bytes)
        try:
            # Zeros: the system commits their pages when they are first written.
            self._swap = np.zeros((2 * num_layers, num_swap_blocks, block_bytes), np.uint8)
        except (MemoryError, ValueError) as error:
            size = num_swap_blocks * kv.layout.num_bytes / 2**30
            raise ConfigError(
                f"the swap space of {size:g} GiB (--swap-space) cannot be reserved: {error}"
            ) from error

    def move(self, moves: BlockMoves) -> None:
        """Do all moves; their order is that of `BlockMoves`."""
        _copy(self._cache, self._swap, moves.swap_outs)
        _copy(self._swap, self._cache, moves.swap_ins)
        _copy(self._cache, self._cache, moves.copies)


def _copy(
    source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8], pairs: Sequence[tuple[int, int]]
) -> None:
    """Copy blocks between two [planes, blocks, bytes] as if all were read before any is written."""
    if pairs:
        source_ids, target_ids = np.array(pairs).T
        target[:, target_ids] = source[:, source_ids]


class ComputedStep:
    """Implements `PendingStep`; its hidden states are there from the start."""

    def __init__(
        self,
        rows: StepRows,
        hidden: torch.Tensor,
        head: Head,
        sampler: Sampler,
        places: Sequence[int],
    ) -> None:
        """From hidden states [R, hidden] of the rows; `places` has the batch's order, see `StepRows`."""
        self._rows = rows
        self._sampler = sampler
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
        prompt_logprobs, errors = rows.score(hidden, self._head, self._sampler).read()
        if rows.probe is not None:
            errors = {**rows.probe.errors(rows.probe.sums.numpy()), **errors}
        pooled = rows.pooled(hidden)
        states, pooling_errors = rows.states(None if pooled is None else pooled.numpy())
        errors |= pooling_errors
        if not rows.sampled:
            self._result = StepResult((), {}, prompt_logprobs, states, errors)
            return
        logits = self._head(hidden if rows.are_next_tokens else hidden[: len(rows.sampled)])
        samples = self._sampler.launch(logits, rows.sampled).read()
        token_ids = [samples.token_ids[place] for place in self._places]
        errors |= samples.errors
        self._result = StepResult(token_ids, samples.logprobs, prompt_logprobs, states, errors)

    def result(self) -> StepResult:
        return self._result


class KvStorage(KvMemory):
    """The memory with its tensors."""

    def __init__(self, layout: KvLayout, num_blocks: int, descriptor: int | None = None) -> None:
        super().__init__(layout, num_blocks, descriptor)
        elements = torch.from_numpy(self.bytes).view(getattr(torch, layout.dtype))
        heads = (layout.group.num_kv_heads, layout.row_size)
        shape = (layout.num_layers, 2, num_blocks, layout.block_size, *heads)
        self.layers = elements.view(shape).unbind(0)
        """Per layer: [2 (keys, values), block, slot, kv head, row size]."""


MIN_SHARED_WORK: Final = 1 << 26
"""Multiplications in a layer from which on threads share them.

Below, waking the others takes as long as they save: so it is for 64 tokens of a prompt of the demo model, but not
for 512.
"""

MIN_SHARED_IN_ONE_CALL: Final = 1 << 18
"""Likewise, of a decode that is recorded: its threads are woken once, and none waits for one that lost its core."""

MIN_SHARED_WEIGHTS: Final = 1 << 22
"""Weights of a layer that no core's cache holds: several threads may read them faster than one."""


class StepThreads:
    """Sets torch's threads for each step; belongs to the thread that computes the steps."""

    def __init__(self, num_layer_weights: int, cores: SharedCores | None = None) -> None:
        """With `cores`, as many threads as are granted there; else as many as torch has now."""
        self._num_layer_weights = num_layer_weights
        self._num_threads = torch.get_num_threads()
        self._cores = cores
        self._most = self._num_threads if cores is None else cores.num_cores
        self._present: int | None = self._num_threads

    def use(self, num_tokens: int, *, in_one_call: bool = False) -> None:
        """Prepare for a step of so many tokens, whose kernels may be run in one call."""
        least = MIN_SHARED_IN_ONE_CALL if in_one_call else MIN_SHARED_WORK
        shared = (
            self._num_layer_weights >= MIN_SHARED_WEIGHTS
            or num_tokens * self._num_layer_weights >= least
        )
        wanted = self._most if shared else 1
        self._set(wanted if self._cores is None else self._cores.take(wanted))

    def adjust(self) -> None:
        """Go on with as many threads as are granted now; within a step, where no other thread computes."""
        if self._cores is not None:
            self._set(self._cores.adjust())

    def leave(self) -> None:
        """Have another thread compute the next step."""
        if self._cores is not None:
            self._cores.rest()
        torch.set_num_threads(self._num_threads)
        # What torch uses is each thread's own.
        self._present = None

    def _set(self, num_threads: int) -> None:
        if num_threads != self._present:
            torch.set_num_threads(num_threads)
            self._present = num_threads
