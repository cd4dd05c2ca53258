"""Steps that are computed at load: the largest, for its memory; on a GPU steps of all kinds, to compile kernels.

Triton compiles a kernel when it is started for the first time, which takes seconds: once for each size of its tiles,
which follow the number of tokens, and for each number of likeliest tokens that is looked for. No request should wait
for that. (vLLM's profile run and warm-up.)
"""

from __future__ import annotations

from typing import Final

import structlog

from pagemesh.config import CacheConfig, SchedulerConfig
from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.runner import Runner
from pagemesh.errors import ConfigError
from pagemesh.kv_memory.staged import Piece, Stager
from pagemesh.malloc import give_back_freed_memory
from pagemesh.sampling.logprobs import TOP_SIZES
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, BlockMoves, PromptTargets, ScheduledSequence
from pagemesh.sizing.check import ACTIVATIONS, check_memory, reserved_bytes
from pagemesh.sizing.machine import process_memory, reset_peak
from pagemesh.sizing.plan import GIB, num_step_tokens

log = structlog.get_logger(__name__)

_MOST_SCORED: Final = 1024
"""Rows of the output head at once: its tiles are then as large as any."""


def check_after_loading(
    runner: CpuRunner, cache: CacheConfig, scheduler: SchedulerConfig, max_model_len: int
) -> None:
    """Compute the largest step once and raise ConfigError when so much memory is not there.

    What was loaded and what the step took are measured, where the system tells; the KV cache and the
    swap space are committed only when they are used, and count in full. An encoder's step may be longer
    than --max-num-batched-tokens, for a single prompt, which could take minutes here: its memory is what
    a step of that many tokens takes, times as much as it is longer.
    """
    # What malloc has free is no part of the model, and would be taken by a step unseen.
    give_back_freed_memory()
    loaded = process_memory()
    activations = measure_step(runner, scheduler, max_model_len)
    if loaded is None or activations is None:
        return
    budget = scheduler.max_num_batched_tokens
    num_tokens = num_step_tokens(budget, max_model_len, causal=runner.causal)
    activations = activations * num_tokens // budget
    check_memory({"model": loaded.resident, ACTIVATIONS: activations} | reserved_bytes(cache))
    log.info(
        "memory",
        model_bytes=loaded.resident,
        activation_bytes=activations,
        kv_bytes=int(cache.cpu_kv_memory * GIB),
        swap_bytes=int(cache.swap_space * GIB),
    )


def measure_step(runner: CpuRunner, scheduler: SchedulerConfig, max_model_len: int) -> int | None:
    """Bytes that the largest step adds to the process while it runs; None where nobody tells.

    It computes as many tokens as a step may, for as many requests, and samples one for each in the most
    expensive way. Nothing is left of it. ConfigError when it cannot be computed.
    """
    batch = largest_batch(
        runner.kv.layout,
        runner.kv.num_blocks,
        scheduler,
        max_model_len,
        generates=runner.generates,
    )
    can_tell = reset_peak()
    before = process_memory()
    try:
        runner.dummy_run(batch)
    except (RuntimeError, MemoryError) as error:
        # What torch raises when there is no memory for a tensor.
        raise ConfigError(
            f"a step of --max-num-batched-tokens {scheduler.max_num_batched_tokens} tokens cannot be "
            f"computed on this machine: {error}"
        ) from error
    after = process_memory()
    if not can_tell or before is None or after is None:
        return None
    num_blocks = len({i for sequence in batch.sequences for i in sequence.block_ids})
    return max(0, after.peak - before.resident - num_blocks * runner.kv.layout.num_bytes)


def largest_batch(
    layout: KvLayout,
    num_blocks: int,
    scheduler: SchedulerConfig,
    max_model_len: int,
    *,
    generates: bool = True,
) -> Batch:
    """Prompts of equal length that fill a step; in a small cache they share blocks.

    Each samples, or, where the model cannot generate, wants all hidden states.
    """
    num_seqs = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    num_tokens = min(scheduler.max_num_batched_tokens // num_seqs, max_model_len)
    blocks_each = -(-num_tokens // layout.block_size)
    sampling = SamplingParams(temperature=1.0, top_k=50, top_p=0.9)
    return Batch(
        [
            ScheduledSequence(
                request_id=f"dummy-run-{index}",
                token_ids=[0] * num_tokens,
                start=0,
                block_ids=[(index * blocks_each + i) % num_blocks for i in range(blocks_each)],
                sampling=sampling if generates else None,
                # A device edits copies of logits.
                suppressed_token_ids=(0,) if generates else (),
                pooled=None if generates else range(num_tokens),
            )
            for index in range(num_seqs)
        ]
    )


def warm_up_batches(
    layout: KvLayout, scheduler: SchedulerConfig, max_model_len: int, *, generates: bool
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


def move_blocks(runner: Runner, stager: Stager, num_blocks: int, num_swap_blocks: int) -> None:
    """Every way in which blocks are moved, once, while they are all alike."""
    swaps = ((0, 0),) if num_swap_blocks else ()
    copies = ((0, 1),) if num_blocks > 1 else ()
    runner.move(BlockMoves(swaps, swaps, copies))
    keys = Piece((0,), first_plane=0, num_planes=1)
    stager.stage_out(0, keys)
    stager.stage_in(0, keys)


def _sequence(
    layout: KvLayout, start: int, num_tokens: int, num_top: int | None
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
