"""Decodes of few sequences on a CPU, recorded once for each number of them and run again in one call, or a few.

Of a small model, or of one sequence, making a kernel ready takes as long as running it, and of a large one its threads
would be started for every kernel. A recording runs the same kernels with the same arguments on other contents of the
same memory, so its results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

import numpy as np
import numpy.typing as npt
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
"""In all layers of one call, if they are several. Between its calls a step looks which cores it may use."""

_LEAST_BLOCKS: Final = 64
"""Per sequence, that a recording has room for."""


class RecordedDecodes:
    """Runs decodes that were recorded, and records those that were not. One thread at a time."""

    def __init__(self, model: PagedModel, num_layer_weights: int) -> None:
        """`num_layer_weights` are those in a layer that a token is multiplied with."""
        self._model = model
        self._num_layers = max(1, MAX_WEIGHTS // max(1, num_layer_weights))
        self._memory = ResultMemory()
        self._decodes: dict[int, _Decode] = {}
        self._decoder = model.decoder if isinstance(model.decoder, Decoder) else None

    def takes(self, num_sequences: int) -> bool:
        """Whether decodes of so many sequences can be recorded, for all that is known: not if there are too many, or
        the model computes with anything but kernels of this project."""
        return self._decoder is not None and num_sequences <= MAX_SEQUENCES

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """Logits [N, vocab], there until the next run, of N sequences that have one token each; as many as it takes."""
        assert self._decoder is not None, "it takes none"
        sequences = paged_sequences(inputs.sequences)
        num_blocks = sum(len(sequence.block_ids) for sequence in sequences)
        decode = self._decodes.get(len(sequences))
        if decode is None or num_blocks > decode.capacity.num_blocks:
            # Twice what is needed: as their contexts grow, sequences need more.
            num_blocks = max(_LEAST_BLOCKS * len(sequences), 2 * num_blocks)
            capacity = Capacity(len(sequences), num_blocks)
            decode = _Decode(self._model, self._decoder, capacity, self._num_layers)
            self._decodes[len(sequences)] = decode
        logits = decode.run(inputs.columns, sequences, self._memory)
        if decode.others:
            # What was computed is right; it only cannot be run again.
            log.debug("decodes are not recorded", because_of=sorted(set(decode.others)))
            self._decoder = None
            self._decodes.clear()
        return logits


class _Decode:
    """The decode of one number of sequences, whose inputs always lie in the same place."""

    def __init__(
        self, model: PagedModel, decoder: Decoder, capacity: Capacity, num_layers: int
    ) -> None:
        """`num_layers` are those of one call."""
        self.capacity = capacity
        self.others: list[str] = []
        """What keeps it from being run again; known once it ran."""
        self._model = model
        self._decoder = decoder
        self._num_layers = num_layers
        self._plan = model.make_reusable_plan(capacity)
        self._numbers = np.empty((3, capacity.num_sequences), np.int64)
        self._columns = torch.from_numpy(self._numbers)
        self._entered: list[torch.Tensor] = []
        """What the layers begin with, where that is made anew each time: by other operations than kernels."""
        self._slots = self._columns[2]
        self._logits = torch.empty(0)
        self._programs: list[Program] = []

    def run(
        self,
        columns: npt.NDArray[np.int64],
        sequences: Sequence[PagedSequence],
        memory: ResultMemory,
    ) -> torch.Tensor:
        """Logits [N, vocab], there until the next decode of any number of sequences."""
        self._numbers[:] = columns
        # The slots as they are, where they are.
        slot_mapping = self._model.slot_mapping(self._slots)
        self._plan.refill(sequences)
        if not self._programs:
            self._record(slot_mapping, memory)
            return self._logits
        if self._entered:
            for kept, new in zip(self._entered, self._enter(), strict=True):
                kept.copy_(new)
        for number, program in enumerate(self._programs):
            if number and self._model.on_layer is not None:
                self._model.on_layer()
            program.run()
        return self._logits

    def _enter(self) -> list[torch.Tensor]:
        token_ids, positions, _ = self._columns.unbind()
        return self._decoder.enter(token_ids, positions)

    def _record(self, slot_mapping: torch.Tensor, memory: ResultMemory) -> None:
        with recording(memory) as entering:
            entered = self._enter()
        first_calls = entering.calls
        if entering.others:
            self._entered, first_calls = entered, []
        ends: list[int] = []
        layers = count()

        def on_layer() -> None:
            if self._model.on_layer is not None:
                self._model.on_layer()
            number = next(layers)
            if number and number % self._num_layers == 0:
                ends.append(len(first_calls) + len(recorded.calls))

        step = self._model.over_kv(slot_mapping, self._plan, on_layer=on_layer)
        with recording(memory) as recorded:
            self._logits = self._decoder.logits(self._decoder.run_layers(entered, step, None))
        self.others = recorded.others
        calls = [*first_calls, *recorded.calls]
        pieces = zip([0, *ends], [*ends, len(calls)], strict=True)
        self._programs = [Program(calls[begin:end]) for begin, end in pieces]
