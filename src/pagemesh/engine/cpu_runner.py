"""Computes a step: from a batch of plain ids to the next token of every sequence that asks for one.

Owns the KV memory and knows block tables; it does not know requests, queues or prefix caches.
"""

from __future__ import annotations

import torch

from pagemesh.engine.block_mover import BlockMover
from pagemesh.engine.computed_step import ComputedStep
from pagemesh.engine.kv_storage import KvStorage
from pagemesh.engine.layer_watch import LayerWatch
from pagemesh.engine.paged_model import AttentionMaker, PagedModel, paged_sequences
from pagemesh.engine.recorded_decodes import RecordedDecodes
from pagemesh.engine.runner import compute_step
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.engine.step_inputs import StepInputs, make_step_inputs
from pagemesh.engine.step_rows import StepRows
from pagemesh.engine.step_threads import StepThreads
from pagemesh.kernels.paged_attention import make_paged_attention
from pagemesh.models.loader import LoadedModel
from pagemesh.scheduler.batch import Batch, BlockMoves


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
        num_weights = model.shape.num_layers * model.shape.num_layer_weights
        self._decodes = RecordedDecodes(self._model, num_weights)
        self._vocab_size = model.vocab_size
        self._launched: ComputedStep | None = None

    def move(self, moves: BlockMoves) -> None:
        """Copy KV blocks; before the batch that came with the moves is computed."""
        self._mover.move(moves)

    @torch.inference_mode()
    def launch(self, batch: Batch, watch: LayerWatch | None = None) -> ComputedStep:
        """Compute all tokens of the batch and store their KV: everything but the sampling is then done.

        Requests whose KV or logits are not finite are among the errors of the result. Unknown tokens are those
        that the last launched batch sampled. Layers are told of when their KV is written.
        """
        inputs = make_step_inputs(batch.sequences, self.kv.layout.block_size)
        if inputs.unknown:
            assert self._launched is not None, "the token of a step that never was"
            sampled = self._launched.result().token_ids
            inputs.columns[0, inputs.unknown] = [sampled[row] for row in inputs.previous_rows]
        rows = StepRows(inputs.sequences, self._vocab_size)
        columns = torch.from_numpy(inputs.columns)
        num_tokens = columns.shape[1]
        in_one_call = rows.are_next_tokens and watch is None and self._decodes.takes(num_tokens)
        self._threads.use(num_tokens, in_one_call=in_one_call)
        places = rows.places(batch.sequences)
        if in_one_call:
            logits = self._decodes.run(inputs, columns)
            self._launched = ComputedStep(rows, logits, lambda logits: logits, places)
        else:
            hidden = self._compute(inputs, columns, rows, watch)
            self._launched = ComputedStep(rows, hidden, self._model.logits, places)
        return self._launched

    def _compute(
        self, inputs: StepInputs, columns: torch.Tensor, rows: StepRows, watch: LayerWatch | None
    ) -> torch.Tensor:
        token_ids, positions, slots = columns
        plan = self._model.attention.plan(paged_sequences(inputs.sequences))
        selection = rows.selection()
        needed = None if selection is None else torch.from_numpy(selection)
        return self._model.forward(token_ids, positions, slots, plan, needed, watch, rows.probe)

    def rehearse(self, batch: Batch) -> None:
        """Compute a batch for its cost alone; afterwards it is as if it had never been.

        On any thread, as long as no other one computes. The blocks of the batch must be nobody's.
        """
        try:
            compute_step(self, batch)
        finally:
            self._threads.leave()
            self._launched = None
            block_ids = [i for sequence in batch.sequences for i in sequence.block_ids]
            self.kv.bytes[:, :, sorted(set(block_ids))] = 0
