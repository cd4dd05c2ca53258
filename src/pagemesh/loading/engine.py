"""Builds a real engine from settings, on a CPU or a GPU. The one module of the engine that brings the numerics in."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvLayout
from pagemesh.engine.constraints import make_compiler
from pagemesh.engine.cuda.device import CudaGpu, Gpu
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.kernels.jit.parallel import release_threads
from pagemesh.loading.cpu import load_on_host
from pagemesh.loading.cuda import choose_device, load_on_gpu
from pagemesh.loading.parts import EngineParts, Loaded
from pagemesh.local.processes import collected_at_end
from pagemesh.malloc import give_back_freed_memory
from pagemesh.models.loader import LoadedModel
from pagemesh.scheduler.scheduler import Scheduler

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
    # Compiled kernels leave behind how they were written down.
    with collected_at_end():
        if gpu is None:
            if cores is not None:
                # Loading computes as well.
                cores.take(cores.share)
            loaded = load_on_host(*settings, kv_descriptor, cores)
        else:
            loaded = load_on_gpu(*settings, kv_descriptor, gpu)
    # What weights were packed from, and the activations of the largest step.
    give_back_freed_memory()
    release_threads()  # from now on the engine's thread computes, with threads of its own
    return _start_up(loaded, cache, cores)


def _start_up(loaded: Loaded, cache: CacheConfig, cores: SharedCores | None) -> EngineCore:
    model, layout, scheduler, built, trouble, seconds = loaded
    log.info("engine loaded", **{f"{phase}_seconds": round(s, 2) for phase, s in seconds.items()})
    info = _make_info(model, layout, built.num_blocks, scheduler)
    caches_prefixes = cache.enable_prefix_caching and info.causal
    info = replace(info, identity_trouble=trouble, caches_prefixes=caches_prefixes)
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
    model: LoadedModel, layout: KvLayout, num_blocks: int, scheduler: SchedulerConfig
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
        quantization=model.quantization,
    )
    return replace(info, canary=info.hasher().canary())
