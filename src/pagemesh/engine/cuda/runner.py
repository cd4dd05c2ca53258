"""Computes steps on a device that works beside the host. See `pagemesh.engine.runner.Runner`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import numpy as np
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.accelerator import failing_alone
from pagemesh.engine.cuda.captured_steps import CapturedSteps, StepLimits
from pagemesh.engine.cuda.steps import DeviceStep, EagerSteps, LastTokens, StepSampling
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.engine.paged_model import AttentionMaker, PagedModel
from pagemesh.engine.runner import LayerProgress, compute_step
from pagemesh.engine.step_inputs import StepInputs, StepRows, make_step_inputs
from pagemesh.kernels.paged_attention import make_paged_attention
from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.sampler import Sampler
from pagemesh.scheduler.batch import Batch, BlockMoves

MOST_UNTOLD: Final = 128
"""Tokens of a step that runs as a graph though layers are to be told of: a host would take longer to start its kernels
one by one than their KV takes to be sent behind it."""

DEVICE_TIMEOUT: Final = 600.0
"""Seconds after which a device that was asked for a step does nothing any more."""


class DeviceKv(Protocol):
    """The KV memory on a device."""

    @property
    def layout(self) -> KvLayout:
        """Shape of its blocks."""
        ...

    @property
    def num_blocks(self) -> int:
        """How many there are."""
        ...

    @property
    def layers(self) -> Sequence[torch.Tensor]:
        """Per layer: [2 (keys, values), block, slot, kv head, head_dim]."""
        ...


class Mover(Protocol):
    """Copies KV blocks."""

    def move(self, moves: BlockMoves) -> None:
        """See `Runner.move`. Called within `Accelerator.computing`: the steps launched so far are in front
        on torch's current stream, those that rely on the moves come behind."""
        ...


class CudaRunner:
    """Runs batches on one model and one KV cache. One thread at a time, apart from `kv`.

    What one step asks of the device is done before what the next one asks, so that tensors which stay (the
    inputs of graphs, the last tokens) are overwritten behind whoever reads them. Pinned memory of the host
    is not: see `PinnedMemory`.
    """

    def __init__(
        self,
        model: LoadedModel,
        kv: DeviceKv,
        mover: Mover,
        accelerator: Accelerator,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        make_attention: AttentionMaker = make_paged_attention,
        timeout: float = DEVICE_TIMEOUT,
    ) -> None:
        """Over KV memory on the accelerator's device, of batches of at most `max_num_seqs` sequences and
        `max_num_batched_tokens` tokens."""
        self.kv = kv
        """The KV memory."""
        self.generates = model.generates
        """Whether batches may have sequences that sample."""
        self.works_beside_host = True
        """Whether steps are computed while the host does something else."""
        self.causal = model.shape.causal
        """Whether prompts may be computed in pieces."""
        self._mover = mover
        self._accelerator = accelerator
        self._timeout = timeout
        self._vocab_size = model.vocab_size
        self._model = PagedModel(model, kv.layout, kv.layers, make_attention)
        self._transfers = Transfers(accelerator, timeout)
        with accelerator.computing():
            self._last_tokens = LastTokens(max_num_seqs, accelerator.device)
        self._sampling = StepSampling(
            self._working,
            self._model.logits,
            Sampler(model.vocab_size, accelerator.device, self._transfers),
            self._transfers,
            self._last_tokens,
        )
        self._eager = EagerSteps(
            self._model, self._transfers, self._last_tokens, accelerator, timeout
        )
        blocks = kv.num_blocks, kv.layout.block_size
        steps = max_num_seqs, max_num_batched_tokens
        limits = StepLimits(model.max_model_len, model.vocab_size, *steps, *blocks)
        self._captured = CapturedSteps(self._model, self._transfers, self._last_tokens, limits)
        # What was loaded on other streams is used on the steps' own from now on.
        accelerator.synchronize()

    def move(self, moves: BlockMoves) -> None:
        with self._working():
            self._mover.move(moves)

    def capture(
        self, num_sequences: Sequence[int] | None = None, num_tokens: Sequence[int] | None = None
    ) -> None:
        """Capture decodes of all sizes or of these numbers of sequences, and other steps of all sizes or of these
        numbers of tokens, ascending; see `capture_steps`.

        When nobody's KV is in the blocks. Without it, or where it cannot be, steps run eagerly.
        """
        if not self.generates:
            return
        with self._working():
            self._captured.capture(self._accelerator, self._clear, num_sequences, num_tokens)
        self._accelerator.synchronize()

    def launch(self, batch: Batch, progress: LayerProgress | None = None) -> DeviceStep:
        """See `Runner`. Of captured steps no layers are told: short ones would be over before."""
        with self._working():
            inputs = make_step_inputs(batch.sequences, self.kv.layout.block_size)
            rows = StepRows(inputs.sequences, self._vocab_size)
            places = rows.places(batch.sequences)
            logits = self._captured.decode(inputs) if rows.are_next_tokens else None
            hidden = self._states(inputs, rows, progress) if logits is None else None
            return DeviceStep(self._sampling, rows, places, hidden, logits)

    def _states(
        self, inputs: StepInputs, rows: StepRows, progress: LayerProgress | None
    ) -> torch.Tensor:
        """Hidden states [R, hidden] of the rows. A graph tells of no layers while it runs."""
        is_told = progress is not None and inputs.columns.shape[1] > MOST_UNTOLD
        results = None if is_told else self._captured.run(inputs)
        if results is None:
            return self._eager.run(inputs, rows, progress)
        hidden, kv_sums = results
        if rows.probe is not None:
            rows.probe.take(kv_sums)
        selection = rows.selection()
        if selection is None:
            return hidden
        (indices,) = self._transfers.upload([selection])
        return hidden.index_select(0, indices)

    def dummy_run(self, batch: Batch) -> None:
        """Compute a batch for its cost alone; afterwards it is as if it had never been.

        On any thread, as long as no other one computes. The blocks of the batch must be nobody's.
        """
        try:
            compute_step(self, batch)
        finally:
            self._clear({i for sequence in batch.sequences for i in sequence.block_ids})

    def _clear(self, block_ids: Iterable[int]) -> None:
        with self._working():
            (indices,) = self._transfers.upload([np.array(sorted(block_ids), np.int64)])
            for layer in self.kv.layers:
                # As bytes: there is no such operation for 8-bit floats.
                layer.view(torch.uint8).index_fill_(1, indices, 0)

    @contextmanager
    def _working(self) -> Iterator[None]:
        # To leave `computing` is a call of CUDA's as well, which a lost device refuses.
        with failing_alone(self._accelerator, self._timeout), self._accelerator.computing():
            yield
