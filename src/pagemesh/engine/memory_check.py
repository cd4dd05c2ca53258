"""Whether a model fits into this machine's memory: by its config before it is loaded, by measure after.

A process that takes more than there is gets killed without a word, in the middle of everybody's requests.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.core.kv import BlockLayout
from pagemesh.engine.machine_memory import machine_memory, process_memory, reset_peak
from pagemesh.engine.memory_plan import (
    GIB,
    RUNTIME_BYTES,
    Hardware,
    StepLimits,
    activation_bytes,
    num_step_tokens,
    size_text,
    table_bytes,
    weight_bytes,
)
from pagemesh.engine.runner import ModelRunner
from pagemesh.errors import ConfigError
from pagemesh.models.choices import choose_dtype, choose_kv_dtype, choose_max_model_len
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, ScheduledSequence

log = structlog.get_logger(__name__)

_ACTIVATIONS = "activations (--max-num-batched-tokens, --max-num-seqs)"


def check_before_loading(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareConfig | None = None,
    gpu_bytes: int | None = None,
) -> None:
    """Raise ConfigError when what config.json promises is more than there is.

    That is the machine's memory, or, on a GPU of `gpu_bytes`, the share of it that `hardware` says.
    """
    on = Hardware("cpu" if gpu_bytes is None else "cuda", 0)
    try:
        folder = resolve_model_path(model.model, model.hub)
        settings = ConfigJson.read(folder / "config.json")
        architecture = find_architecture(settings)
        if architecture is None:
            return
        spec = architecture.make_spec(settings)
        dtype = choose_dtype(model.dtype, settings, architecture.dtypes)
        max_model_len = choose_max_model_len(model.max_model_len, spec, folder)
    except ConfigError:
        # The loader says what is wrong.
        return
    choose_kv_dtype(cache.kv_cache_dtype, dtype, on.kind, causal=spec.causal)
    if cache.swap_space and not spec.causal:
        raise ConfigError(
            f"--swap-space is {cache.swap_space:g}, but must be 0 for an encoder, which keeps no KV"
        )
    num_tokens = num_step_tokens(
        scheduler.max_num_batched_tokens, max_model_len, causal=spec.causal
    )
    limits = StepLimits(num_tokens, scheduler.max_num_seqs, max_model_len)
    needs = {
        "weights": weight_bytes(spec, dtype),
        "tables": table_bytes(spec, dtype, max_model_len, on),
        "runtime": RUNTIME_BYTES[on.kind],
        _ACTIVATIONS: activation_bytes(spec, dtype, limits),
    }
    if gpu_bytes is None:
        _check(needs | _reserved(cache))
    else:
        _check_gpu(needs, gpu_bytes, (hardware or HardwareConfig()).gpu_memory_utilization)


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
    _check({"model": loaded.resident, _ACTIVATIONS: activations} | _reserved(cache))
    log.info(
        "memory",
        model_bytes=loaded.resident,
        activation_bytes=activations,
        kv_bytes=int(cache.cpu_kv_memory * GIB),
        swap_bytes=int(cache.swap_space * GIB),
    )


def check_swap_space(cache: CacheConfig) -> None:
    """Raise ConfigError when the machine has not so much memory beside this process; for GPUs, whose swap
    space is all that takes much of the host's."""
    held = process_memory()
    if held is not None and cache.swap_space:
        swap = {"swap space (--swap-space)": int(cache.swap_space * GIB)}
        _check({"process": held.resident} | swap)


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


def _reserved(cache: CacheConfig) -> dict[str, int]:
    return {
        "KV cache (--kv-cache-memory)": int(cache.cpu_kv_memory * GIB),
        "swap space (--swap-space)": int(cache.swap_space * GIB),
    }


def _check_gpu(needs: Mapping[str, int], gpu_bytes: int, utilization: float) -> None:
    total = sum(needs.values())
    if total > gpu_bytes * utilization:
        raise ConfigError(
            f"of this GPU's {size_text(gpu_bytes)}, {size_text(gpu_bytes * utilization)} may be used"
            f" (--gpu-memory-utilization {utilization:g}), but {size_text(total)} are needed before the"
            f" first KV block: {_listed(needs)}"
        )


def _listed(needs: Mapping[str, int]) -> str:
    return ", ".join(f"{size_text(size)} {name}" for name, size in needs.items() if size)


def _check(needs: Mapping[str, int]) -> None:
    machine = machine_memory()
    total = sum(needs.values())
    if machine is None:
        return
    if total > machine.total:
        raise ConfigError(
            f"this machine has {size_text(machine.total)} of memory, but {size_text(total)} are needed: {_listed(needs)}"
        )
