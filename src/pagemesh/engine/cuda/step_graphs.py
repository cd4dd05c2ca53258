"""Steps whose kernels were captured once, so that the host starts them all together.

A graph is for one number of tokens; fewer are padded with rows that write nothing and that nobody reads. All
graphs share the memory of their intermediate results: they are captured from the largest on, so that each fits
into what the first took. What outlives a replay lies outside: the inputs, the KV and the results. (Sizes and
order are vLLM's, https://docs.vllm.ai/en/latest/design/cuda_graphs.)

Steps are captured when the model is loaded, because a capture takes a second that no request should wait for, and
because all of a GPU's memory is given away afterwards. A model that makes the host wait is found before anything is
captured: a capture that fails leaves torch's allocator behind as if it went on
(https://github.com/pytorch/pytorch/pull/180395, mended in torch 2.12), so that the process may die of the next one
that frees memory.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog
import torch

from pagemesh.engine.accelerator import Accelerator, Graph
from pagemesh.engine.cuda.steps import KNOWN, LastTokens
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.errors import ConfigError
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
`KvFiniteCheck.sums`."""

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


_CHUNK_SIZES: Final = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""In steps of a half or a third: of many tokens, each that is padded costs time. A step of more tokens takes a GPU so
long that a host starts its kernels meanwhile."""


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Sequences of the decodes to capture, ascending: close where a padded row costs much, the last one fits every
    decode.

    1, 2, 4, then multiples of 8 up to 256 and of 16 beyond, as in vLLM (`cudagraph_capture_sizes`).
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 16)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def chunk_sizes(max_num_batched_tokens: int) -> list[int]:
    """Tokens of the steps with chunks of prompts to capture, ascending. Of one token there is no chunk."""
    if max_num_batched_tokens < 2:
        return []
    sizes = [size for size in _CHUNK_SIZES if size < max_num_batched_tokens]
    is_last = max_num_batched_tokens <= _CHUNK_SIZES[-1]
    return [*sizes, max_num_batched_tokens] if is_last else sizes


def padded_size(sizes: Sequence[int], number: int) -> int | None:
    """The least of the ascending sizes that so many fit; None when none does."""
    place = bisect_left(sizes, number)
    return sizes[place] if place < len(sizes) else None


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TrialSpace(NamedTuple):
    """The KV blocks that a trial may use, all of which are nobody's, and what the model knows."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    clear: Callable[[range], None]
    """Makes blocks empty again."""


def capture_steps(
    accelerator: Accelerator,
    make_step: Callable[[Capacity], PaddedStep],
    capacities: Sequence[Capacity],
    space: TrialSpace,
) -> StepGraphs | None:
    """Graphs for all sizes, given in ascending order; None for a model whose steps must run eagerly.

    That is one which makes the host wait for the device, or whose graph gives other bits than its kernels
    give when they are started one by one. ConfigError when a capture fails, for want of memory or whatever.
    """
    started_at = time.perf_counter()
    graphs: StepGraphs | None = None
    for capacity in reversed(capacities):
        step = make_step(capacity)
        inputs = trial_inputs(capacity, space)
        num_tokens = inputs.columns.shape[1]
        blocks = range(1 + max(block for each in inputs.sequences for block in each.block_ids))
        space.clear(blocks)
        step.fill(inputs)
        # The first time, kernels are compiled and models make what they keep.
        results = step.run()
        graphs = graphs or StepGraphs(accelerator, tuple(map(torch.zeros_like, results)))
        try:
            with accelerator.refusing_waits():
                expected = [each[:num_tokens].clone() for each in graphs.compute(step)]
        except RuntimeError as error:
            _warn(capacity, str(error))
            space.clear(blocks)
            return None
        # All padding: nothing of the trial's inputs may get into the graph.
        step.fill(None)
        _capture(graphs, step, capacity)
        space.clear(blocks)
        replayed = graphs.run(inputs)
        space.clear(blocks)
        if replayed is None or not _same_bits(replayed, expected):
            _warn(capacity, "a graph gives other results than its kernels")
            return None
    if graphs is not None:
        seconds = round(time.perf_counter() - started_at, 3)
        largest = capacities[-1]
        event = f"{_kind(largest)} captured"
        log.info(event, num_graphs=len(capacities), largest=largest.num_queries, seconds=seconds)
    return graphs


def _capture(graphs: StepGraphs, step: PaddedStep, capacity: Capacity) -> None:
    try:
        graphs.capture(step)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory does not suffice for the graphs of {_kind(capacity)}: lower --max-num-seqs or"
            f" --gpu-memory-utilization, or give --enforce-eager ({error})"
        ) from error
    except Exception as error:
        # Boundary to models that are not pagemesh's own: they may do whatever they like.
        unit = "sequences" if capacity.longest == 1 else "tokens"
        raise ConfigError(
            f"{_kind(capacity)} of {step.size} {unit} cannot be captured, give --enforce-eager"
            f" ({type(error).__name__}: {error})"
        ) from error


def trial_inputs(capacity: Capacity, space: TrialSpace) -> GraphInputs:
    """Decodes of one block each, at different places of it, and where there may be some, chunks of prompts behind them
    and some padding; fewer when there are not so many blocks."""
    num_decodes, num_left = min(capacity.num_sequences, space.num_blocks), 0
    if capacity.longest > 1:
        num_decodes = min(num_decodes // 2, capacity.num_queries // 4)
        num_left = capacity.num_queries - num_decodes - capacity.num_queries // 8
    places = range(num_decodes)
    sequences = [PagedSequence(1, place % space.block_size + 1, (place,)) for place in places]
    first_block = num_decodes
    while num_left and len(sequences) < capacity.num_sequences and first_block < space.num_blocks:
        room = (space.num_blocks - first_block) * space.block_size
        num_tokens = min(num_left, room, space.max_model_len)
        end = first_block - (-num_tokens // space.block_size)
        sequences.append(PagedSequence(num_tokens, num_tokens, range(first_block, end)))
        first_block, num_left = end, num_left - num_tokens
    columns = np.concatenate([_columns(each, space) for each in sequences], axis=1)
    return GraphInputs(columns, np.full(columns.shape[1], KNOWN, np.int64), sequences)


def _columns(sequence: PagedSequence, space: TrialSpace) -> IntArray:
    """Token ids, positions and slots of a sequence's queries."""
    positions = np.arange(sequence.context_len - sequence.num_queries, sequence.context_len)
    blocks = np.array(sequence.block_ids)[positions // space.block_size]
    slots = blocks * space.block_size + positions % space.block_size
    return np.stack([slots % space.vocab_size, positions, slots])


def _same_bits(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(
        torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
        for mine, theirs in zip(one, other, strict=True)
    )


def _kind(capacity: Capacity) -> str:
    return "decodes" if capacity.longest == 1 else "steps"


def _warn(capacity: Capacity, reason: str) -> None:
    event = f"{_kind(capacity)} run without CUDA graphs: they cannot be captured"
    log.warning(event, reason=reason)
