"""Builds a real engine from settings. The one module of the engine that brings the numerics in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil
from time import perf_counter
from typing import Final

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.engine.block_mover import num_swap_blocks_for
from pagemesh.engine.device import choose_device
from pagemesh.engine.engine import STEP_TIMEOUT, EngineCore
from pagemesh.engine.interface import BlockLayout, EngineInfo
from pagemesh.engine.memory_check import check_after_loading, check_before_loading
from pagemesh.engine.memory_plan import (
    StepLimits,
    num_kv_blocks,
    num_step_blocks,
    num_step_tokens,
)
from pagemesh.engine.runner import ModelRunner
from pagemesh.errors import ConfigError
from pagemesh.kernels.jit.parallel import release_threads
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.sampling.structured.constraint import GrammarBackend
from pagemesh.scheduler.scheduler import Scheduler

_STEP_PATIENCE: Final = 100
"""Times the largest step at load that any step may take: one over long contexts takes some ten times as
long, and others may want the machine."""


def load_engine(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareConfig | None = None,
    kv_descriptor: int | None = None,
) -> EngineCore:
    """Load the model, reserve the KV cache and give an engine that is not started yet.

    The KV lies in the memory behind `kv_descriptor` (see `kv_memory`), or in memory of its own.

    Raises ConfigError when the folder cannot be used, one request of full length does not fit, or all
    of it together is more than the machine's memory.
    """
    choose_device(hardware or HardwareConfig(), cache)
    check_before_loading(model, cache, scheduler)
    loaded = load_model(model)
    layout = loaded.block_layout(cache.block_size)
    num_blocks = _num_blocks(loaded, layout, cache, _fitting(scheduler, loaded))
    info = _make_info(loaded, layout, num_blocks, scheduler)
    num_swap_blocks = num_swap_blocks_for(layout, cache.swap_space)
    runner = ModelRunner(
        loaded,
        cache.block_size,
        num_blocks,
        kv_descriptor=kv_descriptor,
        num_swap_blocks=num_swap_blocks,
    )
    started_at = perf_counter()
    check_after_loading(runner, cache, scheduler, loaded.max_model_len)
    largest_step_seconds = perf_counter() - started_at
    release_threads()  # from now on the engine's thread computes, with threads of its own
    core_scheduler = Scheduler(
        info,
        _fitting(scheduler, loaded),
        vocab_size=loaded.vocab_size,
        eos_token_ids=loaded.eos_token_ids,
        enable_prefix_caching=cache.enable_prefix_caching,
        num_swap_blocks=num_swap_blocks,
    )
    grammars = GrammarCompiler(partial(load_backend, loaded))
    return EngineCore(
        info,
        core_scheduler,
        runner,
        runner.kv,
        grammars,
        step_timeout=max(STEP_TIMEOUT, _STEP_PATIENCE * largest_step_seconds),
        overlaps=_overlaps(scheduler, runner),
    )


def _overlaps(scheduler: SchedulerConfig, runner: ModelRunner) -> bool:
    if scheduler.async_scheduling == "auto":
        return runner.works_beside_host
    return scheduler.async_scheduling == "on"


def _fitting(scheduler: SchedulerConfig, model: LoadedModel) -> SchedulerConfig:
    """The settings with a budget that a prompt fits into, where it cannot be cut."""
    num_tokens = num_step_tokens(
        scheduler.max_num_batched_tokens, model.max_model_len, causal=model.shape.causal
    )
    return replace(scheduler, max_num_batched_tokens=num_tokens)


def _num_blocks(
    model: LoadedModel, layout: BlockLayout, cache: CacheConfig, scheduler: SchedulerConfig
) -> int:
    """Blocks of the cache; no more than a step can use, where nothing is kept for the next one."""
    num_blocks = num_kv_blocks(layout, cache.cpu_kv_memory)
    check_cache_size(layout, num_blocks, model.max_model_len, cache.cpu_kv_memory)
    if model.shape.causal:
        return num_blocks
    step = StepLimits(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, model.max_model_len)
    return min(num_blocks, num_step_blocks(step, layout.block_size))


def _make_info(
    model: LoadedModel, layout: BlockLayout, num_blocks: int, scheduler: SchedulerConfig
) -> EngineInfo:
    return EngineInfo(
        model_fingerprint=model.fingerprint,
        layout=layout,
        num_blocks=num_blocks,
        max_model_len=model.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        pooling=model.pooling,
        generates=model.generates,
        causal=model.shape.causal,
    )


def load_backend(model: LoadedModel) -> GrammarBackend:
    """What compiles grammars for a model; UnsupportedError when its tokenizer is of no use for that."""
    # Here, because few engines ever need the library and the tokenizer.
    from pagemesh.sampling.structured.guidance import GuidanceBackend

    return GuidanceBackend(model.folder, model.vocab_size, model.eos_token_ids)


def check_cache_size(
    layout: BlockLayout, num_blocks: int, max_model_len: int, kv_cache_memory: float
) -> None:
    """Raise ConfigError unless a request of `max_model_len` tokens fits into the blocks."""
    if layout.block_size > max_model_len:
        raise ConfigError(
            f"--block-size is {layout.block_size}, but requests have at most {max_model_len} tokens"
            " (--max-model-len)"
        )
    num_tokens = num_blocks * layout.block_size
    if num_tokens < max_model_len:
        num_needed = -(-max_model_len // layout.block_size)
        gib_needed = ceil(num_needed * layout.num_bytes / 2**30 * 1000) / 1000
        raise ConfigError(
            f"--kv-cache-memory {kv_cache_memory:g} GiB holds the KV of {num_tokens} tokens, but"
            f" requests may have {max_model_len}: raise --kv-cache-memory to at least"
            f" {gib_needed:g} or lower --max-model-len"
        )
