"""Captures a model's steps when it is loaded, and finds out whether that can be done at all.

At load, because a capture takes a second that no request should wait for, and because all of a GPU's
memory is given away afterwards.

A model that makes the host wait is found before anything is captured: a capture that fails leaves torch's
allocator behind as if it went on (https://github.com/pytorch/pytorch/pull/180395, mended in torch 2.12), so
that the process may die of the next one that frees memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import structlog
import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.step_graphs import (
    GraphInputs,
    IntArray,
    PaddedStep,
    StepGraphs,
)
from pagemesh.engine.cuda.token_inputs import KNOWN
from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import Capacity, PagedSequence

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
