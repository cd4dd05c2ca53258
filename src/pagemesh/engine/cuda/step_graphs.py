"""Steps whose kernels were captured once, so that the host starts them all together.

A graph is for one number of tokens; fewer are padded with rows that write nothing and that nobody reads. All
graphs share the memory of their intermediate results: they are captured from the largest on, so that each fits
into what the first took. What outlives a replay lies outside: the inputs, the KV and the results. (Sizes and order are vLLM's, https://docs.vllm.ai/en/latest/design/cuda_graphs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.accelerator import Accelerator, Graph
from pagemesh.engine.cuda.captured_sizes import padded_size
from pagemesh.engine.cuda.token_inputs import KNOWN, LastTokens
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.kernels.paged_attention import AttentionPlan, Capacity, PagedSequence, ReusablePlan

NO_SLOT = -1
"""Of a row that is there for its place only."""

IntArray = npt.NDArray[np.int64]


class GraphInputs(NamedTuple):
    """What a step is made of, in the order of computation."""

    columns: IntArray
    """[3, T]: token ids, positions, slots."""

    rows: IntArray
    """See `LastTokens.rows`, of the first tokens or all."""

    sequences: Sequence[PagedSequence]


Results = tuple[torch.Tensor, ...]
"""What a step leaves, each [T, …] in the order of its tokens: of decodes their logits, of others the hidden states and
`KvProbe.sums`."""

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, AttentionPlan], Results]
"""Runs token ids, positions and slots, each [T]."""


class PaddedStep:
    """The step of one number of tokens, with inputs that always lie in the same place."""

    def __init__(
        self,
        compute: Compute,
        transfers: Transfers,
        last_tokens: LastTokens,
        plan: ReusablePlan,
        capacity: Capacity,
    ) -> None:
        """`plan` is for the capacity, whose queries are the step's tokens, padded ones included."""
        self.size = capacity.num_queries
        self._compute = compute
        self._transfers = transfers
        self._last_tokens = last_tokens
        self._plan = plan
        self._max_num_blocks = capacity.num_blocks
        self._memory, (self._columns, self._rows) = transfers.reserve(self._padded(None))

    def has_room(self, inputs: GraphInputs) -> bool:
        """Whether the block tables fit."""
        return sum(len(each.block_ids) for each in inputs.sequences) <= self._max_num_blocks

    def fill(self, inputs: GraphInputs | None) -> None:
        """Bring the inputs of the next run to the device; None is all padding."""
        self._transfers.upload(self._padded(inputs), self._memory)
        self._plan.refill(inputs.sequences if inputs is not None else ())

    def run(self) -> Results:
        """What the tokens give, of all `size`."""
        token_ids, positions, slots = self._columns
        token_ids = self._last_tokens.fill(token_ids, self._rows)
        return self._compute(token_ids, positions, slots, self._plan)

    def _padded(self, inputs: GraphInputs | None) -> list[IntArray]:
        columns = np.zeros((3, self.size), np.int64)
        columns[2] = NO_SLOT
        rows = np.full(self.size, KNOWN, np.int64)
        if inputs is not None:
            columns[:, : inputs.columns.shape[1]] = inputs.columns
            rows[: len(inputs.rows)] = inputs.rows
        return [columns, rows]


class StepGraphs:
    """Graphs for steps of several sizes, and the results that they leave."""

    def __init__(self, accelerator: Accelerator, results: Results) -> None:
        """`results` are those of the largest size; each run overwrites them."""
        self._accelerator = accelerator
        self._results = results
        self._graphs: dict[int, tuple[PaddedStep, Graph]] = {}
        self._sizes: list[int] = []

    def compute(self, step: PaddedStep) -> Results:
        """Run a step's kernels one by one; its results are there until the next run."""
        results = self._first(step.size)
        for kept, made in zip(results, step.run(), strict=True):
            kept.copy_(made)
        return results

    def capture(self, step: PaddedStep) -> None:
        """Add a size; its kernels have run before, by `compute`."""

        def work() -> None:
            self.compute(step)

        graph = self._accelerator.capture(work)
        self._graphs[step.size] = (step, graph)
        self._sizes = sorted(self._graphs)

    def run(self, inputs: GraphInputs) -> Results | None:
        """Of all tokens, there until the next run; None when no graph has room for them."""
        num_tokens = inputs.columns.shape[1]
        size = padded_size(self._sizes, num_tokens)
        if size is None:
            return None
        step, graph = self._graphs[size]
        if not step.has_room(inputs):
            return None
        step.fill(inputs)
        graph.replay()
        return self._first(num_tokens)

    def _first(self, num_tokens: int) -> Results:
        return tuple(each[:num_tokens] for each in self._results)
