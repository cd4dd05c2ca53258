"""Captures a model's decodes when it is loaded, and finds out whether that can be done at all.

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
from pagemesh.engine.cuda.decode_graphs import DecodeGraphs, DecodeInputs, PaddedDecode
from pagemesh.engine.cuda.token_inputs import KNOWN
from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import PagedSequence

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TrialSpace(NamedTuple):
    """The KV blocks that a trial may use, all of which are nobody's, and a vocabulary."""

    num_blocks: int
    block_size: int
    vocab_size: int
    clear: Callable[[range], None]
    """Makes blocks empty again."""


def capture_decodes(
    accelerator: Accelerator,
    make_decode: Callable[[int], PaddedDecode],
    sizes: Sequence[int],
    space: TrialSpace,
) -> DecodeGraphs | None:
    """Graphs for all sizes, given in ascending order; None for a model whose decodes must run eagerly.

    That is one which makes the host wait for the device, or whose graph gives other bits than its kernels
    give when they are started one by one. ConfigError when a capture fails, for want of memory or whatever.
    """
    started_at = time.perf_counter()
    graphs: DecodeGraphs | None = None
    for size in reversed(sizes):
        decode = make_decode(size)
        inputs = trial_inputs(size, space)
        space.clear(range(len(inputs.rows)))
        decode.fill(inputs)
        # The first time, kernels are compiled and models make what they keep.
        logits = decode.run()
        graphs = graphs or DecodeGraphs(accelerator, torch.zeros_like(logits))
        try:
            with accelerator.refusing_waits():
                expected = graphs.compute(decode).clone()
        except RuntimeError as error:
            _warn(str(error))
            return None
        # All padding: nothing of the trial's inputs may get into the graph.
        decode.fill(None)
        _capture(graphs, decode)
        space.clear(range(len(inputs.rows)))
        replayed = graphs.run(inputs)
        if replayed is None or not _same_bits(replayed, expected[: len(replayed)]):
            _warn("a graph gives other logits than its kernels")
            return None
    seconds = round(time.perf_counter() - started_at, 3)
    log.info("decodes captured", num_graphs=len(sizes), largest=sizes[-1], seconds=seconds)
    return graphs


def _capture(graphs: DecodeGraphs, decode: PaddedDecode) -> None:
    try:
        graphs.capture(decode)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            "the GPU's memory does not suffice for the graphs of decodes: lower --max-num-seqs or"
            f" --gpu-memory-utilization, or give --enforce-eager ({error})"
        ) from error
    except Exception as error:
        # Boundary to models that are not pagemesh's own: they may do whatever they like.
        raise ConfigError(
            f"decodes of {decode.size} sequences cannot be captured, give --enforce-eager"
            f" ({type(error).__name__}: {error})"
        ) from error


def trial_inputs(size: int, space: TrialSpace) -> DecodeInputs:
    """Decodes of one block each, at different places of it; fewer when there are not so many blocks."""
    indices = np.arange(min(size, space.num_blocks))
    starts = indices % space.block_size
    columns = np.stack([indices % space.vocab_size, starts, indices * space.block_size + starts])
    sequences = [PagedSequence(1, int(start) + 1, (index,)) for index, start in enumerate(starts)]
    return DecodeInputs(columns, np.full(len(indices), KNOWN, np.int64), sequences)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _warn(reason: str) -> None:
    log.warning("decodes run without CUDA graphs: they cannot be captured", reason=reason)
