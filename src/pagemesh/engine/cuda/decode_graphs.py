"""Decodes whose kernels were captured once, so that the host starts them all together.

A graph is for one number of sequences; fewer are padded with rows that write nothing and that nobody
reads. All graphs share the memory of their intermediate results: they are captured from the largest on,
so that each fits into what the first took. What outlives a replay lies outside: the inputs, the KV and
the logits. (Sizes and order are vLLM's, https://docs.vllm.ai/en/latest/design/cuda_graphs.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.accelerator import Accelerator, Graph
from pagemesh.engine.cuda.decode_sizes import padded_size
from pagemesh.engine.cuda.token_inputs import KNOWN, LastTokens
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.engine.paged_model import PagedModel
from pagemesh.kernels.paged_attention import PagedSequence

NO_SLOT = -1
"""Of a row that is there for its place only."""

IntArray = npt.NDArray[np.int64]


class DecodeInputs(NamedTuple):
    """What a step of decodes is made of, in the order of computation."""

    columns: IntArray
    """[3, N]: token ids, positions, slots."""

    rows: IntArray
    """[N]: see `LastTokens.rows`."""

    sequences: Sequence[PagedSequence]


class PaddedDecode:
    """The decode of one number of sequences, with inputs that always lie in the same place."""

    def __init__(
        self,
        model: PagedModel,
        transfers: Transfers,
        last_tokens: LastTokens,
        size: int,
        max_num_blocks: int,
    ) -> None:
        """`size` is the number of rows, padded ones included; all block tables together fit
        `max_num_blocks`."""
        self.size = size
        self._model = model
        self._transfers = transfers
        self._last_tokens = last_tokens
        self._max_num_blocks = max_num_blocks
        self._plan = model.make_reusable_plan(size, max_num_blocks)
        self._memory, (self._columns, self._rows) = transfers.reserve(self._padded(None))

    def has_room(self, inputs: DecodeInputs) -> bool:
        """Whether the block tables fit."""
        return sum(len(each.block_ids) for each in inputs.sequences) <= self._max_num_blocks

    def fill(self, inputs: DecodeInputs | None) -> None:
        """Bring the inputs of the next run to the device; None is all padding."""
        self._transfers.upload(self._padded(inputs), self._memory)
        self._plan.refill(inputs.sequences if inputs is not None else ())

    def run(self) -> torch.Tensor:
        """Logits [size, vocab]."""
        token_ids, positions, slots = self._columns
        token_ids = self._last_tokens.fill(token_ids, self._rows)
        hidden = self._model.forward(token_ids, positions, slots, self._plan, None)
        return self._model.logits(hidden)

    def _padded(self, inputs: DecodeInputs | None) -> list[IntArray]:
        columns = np.zeros((3, self.size), np.int64)
        columns[2] = NO_SLOT
        rows = np.full(self.size, KNOWN, np.int64)
        if inputs is not None:
            num_sequences = len(inputs.rows)
            columns[:, :num_sequences] = inputs.columns
            rows[:num_sequences] = inputs.rows
        return [columns, rows]


class DecodeGraphs:
    """Graphs for decodes of several sizes, and the logits that they leave."""

    def __init__(self, accelerator: Accelerator, logits: torch.Tensor) -> None:
        """`logits` is [largest size, vocab], in the model's type; each run overwrites it."""
        self._accelerator = accelerator
        self._logits = logits
        self._graphs: dict[int, tuple[PaddedDecode, Graph]] = {}
        self._sizes: list[int] = []

    def compute(self, decode: PaddedDecode) -> torch.Tensor:
        """Run a decode's kernels one by one; its logits, [size, vocab], are there until the next run."""
        logits = self._logits[: decode.size]
        logits.copy_(decode.run())
        return logits

    def capture(self, decode: PaddedDecode) -> None:
        """Add a size; its kernels have run before, by `compute`."""

        def work() -> None:
            self.compute(decode)

        graph = self._accelerator.capture(work)
        self._graphs[decode.size] = (decode, graph)
        self._sizes = sorted(self._graphs)

    def run(self, inputs: DecodeInputs) -> torch.Tensor | None:
        """Logits [N, vocab], there until the next run; None when no graph has room for them."""
        num_sequences = len(inputs.rows)
        size = padded_size(self._sizes, num_sequences)
        if size is None:
            return None
        decode, graph = self._graphs[size]
        if not decode.has_room(inputs):
            return None
        decode.fill(inputs)
        graph.replay()
        return self._logits[:num_sequences]
