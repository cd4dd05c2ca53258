"""Builds what an engine computes with on a CPU: a KV cache of the size that the settings say."""

from __future__ import annotations

from math import ceil
from time import perf_counter

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import CpuRunner, num_swap_blocks_for
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.errors import ConfigError
from pagemesh.loading.identical import load_identical
from pagemesh.loading.parts import (
    EngineParts,
    Loaded,
    StartClock,
    fitting,
    layout_of,
    max_num_blocks,
)
from pagemesh.loading.profile_run import check_after_loading
from pagemesh.models.loader import LoadedModel
from pagemesh.models.parameters import HOST, ModelTarget
from pagemesh.sizing.check import check_before_loading
from pagemesh.sizing.plan import num_kv_blocks


def load_on_host(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareConfig,
    kv_descriptor: int | None,
    cores: SharedCores | None,
) -> Loaded:
    """Load a model and build what computes it; ConfigError when the settings do not fit it or the machine."""
    check_before_loading(model, cache, scheduler)
    clock = StartClock()
    with clock.phase("read"):
        target = ModelTarget(HOST, cache.kv_cache_dtype)
        loaded, trouble = load_identical(model, hardware, target=target)
    layout = layout_of(loaded, cache)
    limits = fitting(scheduler, loaded)
    most = max_num_blocks(loaded, layout, limits)
    with clock.phase("measure"):
        built = build_on_host(loaded, layout, cache, scheduler, most, kv_descriptor, cores)
    return Loaded(loaded, layout, limits, built, trouble, clock.seconds)


def build_on_host(
    model: LoadedModel,
    layout: KvLayout,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    max_num_blocks: int | None,
    kv_descriptor: int | None,
    cores: SharedCores | None = None,
) -> EngineParts:
    """Reserve the KV cache, of `max_num_blocks` at most, and compute the largest step once.

    The KV lies in the memory behind `kv_descriptor` (see `kv_memory`), or in memory of its own. With `cores`,
    steps are computed on those that are granted there. Raises ConfigError when one request of full length does not fit, or all of it together is more than the
    machine's memory.
    """
    num_blocks = num_kv_blocks(layout, cache.cpu_kv_memory)
    check_cache_size(layout, num_blocks, model.max_model_len, cache.cpu_kv_memory)
    num_blocks = min(num_blocks, max_num_blocks or num_blocks)
    num_swap_blocks = num_swap_blocks_for(layout, cache.swap_space)
    runner = CpuRunner(
        model,
        layout.block_size,
        num_blocks,
        kv_descriptor=kv_descriptor,
        num_swap_blocks=num_swap_blocks,
        cores=cores,
    )
    started_at = perf_counter()
    check_after_loading(runner, cache, scheduler, model.max_model_len)
    seconds = perf_counter() - started_at
    # The mapping goes when the last view of it does.
    return EngineParts(
        runner,
        runner.kv,
        num_blocks,
        num_swap_blocks,
        seconds,
        works_beside_host=runner.works_beside_host,
        release=lambda: None,
    )


def check_cache_size(
    layout: KvLayout, num_blocks: int, max_model_len: int, kv_cache_memory: float
) -> None:
    """Raise ConfigError unless a request of `max_model_len` tokens fits into the blocks."""
    num_tokens = num_blocks * layout.block_size
    if num_tokens < max_model_len:
        num_needed = -(-max_model_len // layout.block_size)
        gib_needed = ceil(num_needed * layout.num_bytes / 2**30 * 1000) / 1000
        raise ConfigError(
            f"--kv-cache-memory {kv_cache_memory:g} GiB holds the KV of {num_tokens} tokens, but"
            f" requests may have {max_model_len}: raise --kv-cache-memory to at least"
            f" {gib_needed:g} or lower --max-model-len"
        )
