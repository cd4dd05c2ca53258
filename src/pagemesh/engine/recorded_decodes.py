"""Decodes of few sequences on a CPU, recorded once for each number of them and run again in one call.

Of a small model, or of one sequence, making a kernel ready takes as long as running it. A recording runs the
same kernels with the same arguments on other contents of the same memory, so its results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
import torch

from pagemesh.engine.paged_model import PagedModel, paged_sequences
from pagemesh.engine.step_inputs import StepInputs
from pagemesh.kernels.jit.program import Program
from pagemesh.kernels.jit.recording import ResultMemory, recording
from pagemesh.kernels.paged_attention import Capacity, PagedSequence
from pagemesh.models.decoder import Decoder

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_SEQUENCES: Final = 64
"""Of a decode that is recorded: with more of them the kernels take much longer than all around them."""

MAX_WEIGHTS: Final = 1 << 27
"""In all layers of a model whose decodes are recorded. The step of a larger one takes so long that its kernels look
again and again which cores they may use, which a recording does only at its begin."""

_LEAST_BLOCKS: Final = 64
"""Per sequence, that a recording has room for."""


class RecordedDecodes:
    """Runs decodes that were recorded, and records those that were not. One thread at a time."""

    def __init__(self, model: PagedModel, num_weights: int) -> None:
        """`num_weights` are those in the model's layers that a token is multiplied with."""
        self._model = model
        self._memory = ResultMemory()
        self._decodes: dict[int, _Decode] = {}
        self._decoder: Decoder | None = None
        if isinstance(model.decoder, Decoder) and num_weights <= MAX_WEIGHTS:
            self._decoder = model.decoder

    def takes(self, num_sequences: int) -> bool:
        """Whether decodes of so many sequences can be recorded, for all that is known: not if there are too many, or
        the model is large, or computes with anything but kernels of this project."""
        return self._decoder is not None and num_sequences <= MAX_SEQUENCES

    def run(self, inputs: StepInputs, columns: torch.Tensor) -> torch.Tensor:
        """Logits [N, vocab], there until the next run, of N sequences that have one token each; as many as it takes.

        `columns` are the tensors of `inputs.columns`.
        """
        assert self._decoder is not None, "it takes none"
        sequences = paged_sequences(inputs.sequences)
        num_blocks = sum(len(sequence.block_ids) for sequence in sequences)
        decode = self._decodes.get(len(sequences))
        if decode is None or num_blocks > decode.max_num_blocks:
            least = _LEAST_BLOCKS * len(sequences)
            # Twice what is needed: as their contexts grow, sequences need more.
            decode = _Decode(self._model, self._decoder, sequences, max(least, 2 * num_blocks))
            self._decodes[len(sequences)] = decode
        logits = decode.run(columns, sequences, self._memory)
        if decode.others:
            # What was computed is right; it only cannot be run again.
            log.debug("decodes are not recorded", because_of=sorted(set(decode.others)))
            self._decoder = None
            self._decodes.clear()
        return logits


class _Decode:
    """The decode of one number of sequences, whose inputs always lie in the same place."""

    def __init__(
        self,
        model: PagedModel,
        decoder: Decoder,
        sequences: Sequence[PagedSequence],
        max_num_blocks: int,
    ) -> None:
        self.max_num_blocks = max_num_blocks
        self.others: list[str] = []
        """What keeps it from being run again; known once it ran."""
        self._model = model
        self._decoder = decoder
        self._plan = model.make_reusable_plan(Capacity(len(sequences), max_num_blocks))
        self._inputs: list[torch.Tensor] = []
        self._logits = torch.empty(0)
        self._program: Program | None = None

    def run(
        self, columns: torch.Tensor, sequences: Sequence[PagedSequence], memory: ResultMemory
    ) -> torch.Tensor:
        """Logits [N, vocab], there until the next decode of any number of sequences."""
        token_ids, positions, slots = columns
        entered = [*self._decoder.enter(token_ids, positions), self._model.slot_mapping(slots)]
        self._plan.refill(sequences)
        if self._program is None:
            self._inputs = entered
            self._record(memory)
        else:
            for kept, new in zip(self._inputs, entered, strict=True):
                kept.copy_(new)
            self._program.run()
        return self._logits

    def _record(self, memory: ResultMemory) -> None:
        *entered, slot_mapping = self._inputs
        step = self._model.over_kv(slot_mapping, self._plan)
        with recording(memory) as recorded:
            self._logits = self._decoder.logits(self._decoder.run_layers(entered, step, None))
        self.others = recorded.others
        self._program = Program(recorded.calls)
