"""Steps that a device computes at load, so that no kernel is compiled while somebody waits for a token.

Triton compiles a kernel when it is started for the first time, which takes seconds: once for each size of
its tiles, which follow the number of tokens, and for each number of likeliest tokens that is looked for.
"""

from __future__ import annotations

from typing import Final

from pagemesh.config import SchedulerConfig
from pagemesh.core.kv import BlockLayout
from pagemesh.engine.runner import Runner
from pagemesh.kv_memory.staged import Piece, Stager
from pagemesh.sampling.logprobs import TOP_SIZES
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, BlockMoves, PromptTargets, ScheduledSequence

_MOST_SCORED: Final = 1024
"""Rows of the output head at once: its tiles are then as large as any."""


def batches(
    layout: BlockLayout, scheduler: SchedulerConfig, max_model_len: int, *, generates: bool
) -> list[Batch]:
    """One prompt of 1, 2, 3, 4, 8, … tokens up to the longest of a step, then a decode of the longest
    request.

    All over the first blocks of a cache that one request of full length fits.
    """
    longest = min(scheduler.max_num_batched_tokens, max_model_len)
    # Mixtures have tiles of their own for 3. At least as many as there are numbers of likeliest tokens.
    powers = range(max(longest.bit_length() + 1, len(TOP_SIZES)))
    sizes = sorted([3, *(1 << power for power in powers)])
    made = []
    for index, size in enumerate(sizes):
        num_tokens = min(size, longest)
        num_top = TOP_SIZES[index % len(TOP_SIZES)] if generates else None
        made.append(Batch([_sequence(layout, 0, num_tokens, num_top)]))
    if generates:
        # Programs share so long a context, and their sums are merged.
        made.append(Batch([_sequence(layout, max_model_len - 1, 1, 0)]))
    return made


def moves(runner: Runner, stager: Stager, num_blocks: int, num_swap_blocks: int) -> None:
    """Every way in which blocks are moved, once, while they are all alike."""
    swaps = ((0, 0),) if num_swap_blocks else ()
    copies = ((0, 1),) if num_blocks > 1 else ()
    runner.move(BlockMoves(swaps, swaps, copies))
    keys = Piece((0,), first_plane=0, num_planes=1)
    stager.stage_out(0, keys)
    stager.stage_in(0, keys)


def _sequence(
    layout: BlockLayout, start: int, num_tokens: int, num_top: int | None
) -> ScheduledSequence:
    """Zeros, all of which are scored and of which the last is sampled from; or all pooled."""
    sampling = targets = None
    if num_top is not None:
        sampling = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, logprobs=num_top)
        if num_tokens > 1:
            targets = PromptTargets(0, [0] * min(num_tokens - 1, _MOST_SCORED), num_top)
    return ScheduledSequence(
        request_id="warm-up",
        token_ids=[0] * num_tokens,
        start=start,
        block_ids=range(-(-(start + num_tokens) // layout.block_size)),
        sampling=sampling,
        # A device edits copies of logits.
        suppressed_token_ids=() if sampling is None else (0,),
        pooled=range(num_tokens) if sampling is None else None,
        prompt_targets=targets,
    )
