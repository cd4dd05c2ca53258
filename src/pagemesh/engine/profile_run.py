"""The largest step, computed once at load: whether the machine has the memory for it.

Idea and name are vLLM's profile run.
"""

from __future__ import annotations

import structlog

from pagemesh.config import CacheConfig, SchedulerConfig
from pagemesh.core.kv import BlockLayout
from pagemesh.engine.cpu_runner import ModelRunner
from pagemesh.errors import ConfigError
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, ScheduledSequence
from pagemesh.sizing.check import ACTIVATIONS, check_memory, reserved_bytes
from pagemesh.sizing.machine import process_memory, reset_peak
from pagemesh.sizing.plan import GIB, num_step_tokens

log = structlog.get_logger(__name__)


def check_after_loading(
    runner: ModelRunner, cache: CacheConfig, scheduler: SchedulerConfig, max_model_len: int
) -> None:
    """Compute the largest step once and raise ConfigError when so much memory is not there.

    What was loaded and what the step took are measured, where the system tells; the KV cache and the
    swap space are committed only when they are used, and count in full. An encoder's step may be longer
    than --max-num-batched-tokens, for a single prompt, which could take minutes here: its memory is what
    a step of that many tokens takes, times as much as it is longer.
    """
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


def measure_step(runner: ModelRunner, scheduler: SchedulerConfig, max_model_len: int) -> int | None:
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
        runner.rehearse(batch)
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
    layout: BlockLayout,
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
                request_id=f"rehearsal-{index}",
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
