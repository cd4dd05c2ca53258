"""Computes a step: from a batch of plain ids to the next token of every sequence that asks for one.

Owns the KV memory and knows block tables; it does not know requests, queues or prefix caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagemesh.engine.block_mover import BlockMover
from pagemesh.engine.computed_step import ComputedStep
from pagemesh.engine.kv_storage import KvStorage
from pagemesh.engine.step import compute_step
from pagemesh.engine.step_inputs import make_step_inputs
from pagemesh.engine.step_rows import StepRows
from pagemesh.engine.step_threads import StepThreads
from pagemesh.kernels.paged_attention import (
    AttentionPlan,
    AttentionShape,
    LayerAttention,
    PagedAttention,
    PagedSequence,
    make_paged_attention,
)
from pagemesh.kernels.write_kv import slot_rows, write_kv
from pagemesh.models.loader import LoadedModel
from pagemesh.scheduler.batch import Batch, BlockMoves, ScheduledSequence

AttentionMaker = Callable[[AttentionShape, torch.device], PagedAttention]


class ModelRunner:
    """Runs batches on one model and one KV cache. One thread at a time, apart from `kv`."""

    def __init__(
        self,
        model: LoadedModel,
        block_size: int,
        num_blocks: int,
        make_attention: AttentionMaker = make_paged_attention,
        kv_descriptor: int | None = None,
        num_swap_blocks: int = 0,
    ) -> None:
        self.kv = KvStorage(model.block_layout(block_size), num_blocks, kv_descriptor)
        """The KV memory; its own, or that behind the descriptor."""
        self.generates = model.generates
        """Whether batches may have sequences that sample."""
        self.causal = model.shape.causal
        """Whether prompts may be computed in pieces."""
        self._mover = BlockMover(self.kv, num_swap_blocks)
        self._decoder = model.decoder
        self._vocab_size = model.vocab_size
        self._layer_attention = model.layer_attention
        # Of an encoder, every layer's keys and values take the place of the last one's.
        num_turns = model.shape.num_layers // len(self.kv.layers)
        self._layer_kv = self.kv.layers * num_turns
        self._threads = StepThreads(model.shape.num_layer_weights)
        shape = AttentionShape(
            num_heads=model.shape.num_heads,
            num_kv_heads=model.shape.num_kv_heads,
            head_dim=model.shape.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=model.dtype,
            causal=model.shape.causal,
        )
        self._attention = make_attention(shape, torch.device("cpu"))

    def move(self, moves: BlockMoves) -> None:
        """Copy KV blocks; before the batch that came with the moves is computed."""
        self._mover.move(moves)

    @torch.inference_mode()
    def launch(self, batch: Batch) -> ComputedStep:
        """Compute all tokens of the batch and store their KV: everything but the sampling is then done.

        Requests whose logits are not finite are among the errors of the result.
        """
        inputs = make_step_inputs(batch.sequences, self.kv.layout.block_size)
        token_ids, positions, slots = torch.from_numpy(inputs.columns)
        self._threads.use(len(token_ids))
        rows = StepRows(inputs.sequences, self._vocab_size)
        hidden = self._decoder.forward(
            token_ids, positions, self._step_attention(inputs.sequences, slots), rows.selection()
        )
        return ComputedStep(rows, hidden, self._decoder.logits, rows.places(batch.sequences))

    def rehearse(self, batch: Batch) -> None:
        """Compute a batch for its cost alone; afterwards it is as if it had never been.

        On any thread, as long as no other one computes. The blocks of the batch must be nobody's.
        """
        try:
            compute_step(self, batch)
        finally:
            self._threads.leave()
            block_ids = [i for sequence in batch.sequences for i in sequence.block_ids]
            self.kv.bytes[:, :, sorted(set(block_ids))] = 0

    def _step_attention(
        self, sequences: Sequence[ScheduledSequence], slots: torch.Tensor
    ) -> _PagedStep:
        plan = self._attention.plan(
            [
                PagedSequence(len(s.token_ids), s.start + len(s.token_ids), s.block_ids)
                for s in sequences
            ]
        )
        num_slots = self.kv.num_blocks * self.kv.layout.block_size
        return _PagedStep(self._layer_kv, self._layer_attention, slot_rows(slots, num_slots), plan)


class _PagedStep:
    """`StepAttention` over the paged KV."""

    def __init__(
        self,
        layers: Sequence[torch.Tensor],
        layer_attention: Sequence[LayerAttention],
        rows: torch.Tensor,
        plan: AttentionPlan,
    ) -> None:
        self._layers = layers
        self._layer_attention = layer_attention
        self._rows = rows
        self._plan = plan

    def write(self, layer: int, keys_values: torch.Tensor) -> None:
        write_kv(self._layers[layer], keys_values, self._rows)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        return self._plan.attend(query, self._layers[layer], self._layer_attention[layer])
