"""Builds a real engine from settings, on a CPU or a GPU. The one module of the engine that brings the numerics in."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from time import perf_counter
from typing import Final

import structlog

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import BlockLayout
from pagemesh.engine.constraints import make_compiler
from pagemesh.engine.cpu_runner import CpuRunner, num_swap_blocks_for
from pagemesh.engine.cuda.build import load_on_gpu
from pagemesh.engine.cuda.device import CudaGpu, Gpu, choose_device
from pagemesh.engine.engine import EngineCore, EngineParts, Loaded
from pagemesh.engine.fitting import fitting, layout_of, max_num_blocks
from pagemesh.engine.identical_loading import load_identical
from pagemesh.engine.profile_run import check_after_loading
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.engine.start_clock import StartClock
from pagemesh.errors import ConfigError
from pagemesh.kernels.jit.parallel import release_threads
from pagemesh.models.loader import LoadedModel
from pagemesh.scheduler.scheduler import Scheduler
from pagemesh.sizing.check import check_before_loading
from pagemesh.sizing.plan import num_kv_blocks

log = structlog.get_logger(__name__)

_STEP_PATIENCE: Final = 100
"""Times the largest step at load that any step may take: one over long contexts takes some ten times as
long, and others may want the machine."""


def load_engine(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareConfig | None = None,
    kv_descriptor: int | None = None,
    gpu: Gpu | None = None,
    cores: SharedCores | None = None,
) -> EngineCore:
    """Load the model, reserve the KV cache and give an engine that is not started yet.

    The KV, or on a GPU the buffers to it, lie in the memory behind `kv_descriptor` (see `kv_memory` and
    `staged_kv`), or in memory of their own. `gpu` takes the place of the device that the settings choose. Other workers of
    the host use the same `cores`; a GPU's worker leaves them to the others.

    Raises ConfigError when the folder cannot be used, one request of full length does not fit, all of it together is
    more than the machine's memory, or the GPU's, or the GPU's kernels cannot be compiled here.
    """
    hardware = hardware or HardwareConfig()
    if gpu is None and (device := choose_device(hardware, cache)).type == "cuda":
        gpu = CudaGpu(device)
    scheduler = scheduler.on("cpu" if gpu is None else "cuda")
    settings = (model, cache, scheduler, hardware)
    if gpu is None:
        if cores is not None:
            # Loading computes as well.
            cores.take(cores.share)
        loaded = load_on_host(*settings, kv_descriptor, cores)
    else:
        loaded = load_on_gpu(*settings, kv_descriptor, gpu)
    release_threads()  # from now on the engine's thread computes, with threads of its own
    return _start_up(loaded, cache, cores)


def _start_up(loaded: Loaded, cache: CacheConfig, cores: SharedCores | None) -> EngineCore:
    model, layout, scheduler, built, trouble, seconds = loaded
    log.info("engine loaded", **{f"{phase}_seconds": round(s, 2) for phase, s in seconds.items()})
    info = _make_info(model, layout, built.num_blocks, scheduler)
    info = replace(info, identity_trouble=trouble)
    core_scheduler = Scheduler(
        info,
        scheduler,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        enable_prefix_caching=cache.enable_prefix_caching,
        num_swap_blocks=built.num_swap_blocks,
    )
    return EngineCore(
        info,
        core_scheduler,
        built.runner,
        built.kv,
        make_compiler(model),
        step_timeout=max(scheduler.step_timeout, _STEP_PATIENCE * built.largest_step_seconds),
        overlaps=_overlaps(scheduler, built),
        release=built.release,
        cores=cores,
    )


def _overlaps(scheduler: SchedulerConfig, built: EngineParts) -> bool:
    if scheduler.async_scheduling == "auto":
        return built.works_beside_host
    return scheduler.async_scheduling == "on"


def _make_info(
    model: LoadedModel, layout: BlockLayout, num_blocks: int, scheduler: SchedulerConfig
) -> EngineInfo:
    info = EngineInfo(
        model_fingerprint=model.fingerprint,
        layout=layout,
        num_blocks=num_blocks,
        max_model_len=model.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        pooling=model.pooling,
        generates=model.generates,
        causal=model.shape.causal,
        model_folder=str(model.folder),
        arithmetic=model.arithmetic,
    )
    return replace(info, canary=info.hasher().canary())


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
        loaded, trouble = load_identical(model, hardware)
    layout = layout_of(loaded, cache)
    limits = fitting(scheduler, loaded)
    most = max_num_blocks(loaded, layout, limits)
    with clock.phase("measure"):
        built = build_on_host(loaded, layout, cache, scheduler, most, kv_descriptor, cores)
    return Loaded(loaded, layout, limits, built, trouble, clock.seconds)


def build_on_host(
    model: LoadedModel,
    layout: BlockLayout,
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
    layout: BlockLayout, num_blocks: int, max_model_len: int, kv_cache_memory: float
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
