"""What an engine is put together from, on a CPU or a GPU: a model, what its shape makes of the settings, a runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Literal, NamedTuple

from pagemesh.config import CacheConfig, SchedulerConfig
from pagemesh.core.kv import KvAccess, KvLayout
from pagemesh.engine.runner import Runner
from pagemesh.errors import ConfigError
from pagemesh.models.loader import LoadedModel
from pagemesh.sizing.plan import StepLimits, num_step_blocks, num_step_tokens

Phase = Literal["read", "compile", "measure", "capture"]
"""Weights that are read, on a CPU packed and tried as well; the first steps on a GPU, for which kernels are compiled
or taken from disk; steps whose time and memory are measured; steps that are captured as CUDA graphs."""


class StartClock:
    """Counts seconds by phase. What lies between phases (streams, the KV cache, checks) is in none."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Add what happens meanwhile to a phase; phases do not contain each other."""
        started_at = perf_counter()
        try:
            yield
        finally:
            passed = perf_counter() - started_at
            self.seconds[phase] = self.seconds.get(phase, 0.0) + passed


class EngineParts(NamedTuple):
    """A runner with its KV cache, and what is known of them."""

    runner: Runner
    kv: KvAccess
    num_blocks: int
    num_swap_blocks: int

    largest_step_seconds: float
    """How long the largest step took; on a CPU with what happens only the first time."""

    works_beside_host: bool
    """Whether steps are computed while the host does something else."""

    release: Callable[[], None]
    """Gives the memory of the KV cache back, when nobody computes any more."""


class Loaded(NamedTuple):
    """A model, and what it is computed with."""

    model: LoadedModel
    layout: KvLayout

    scheduler: SchedulerConfig
    """With limits that fit the model."""

    built: EngineParts

    identity_trouble: str
    """See `EngineInfo`."""

    seconds: Mapping[Phase, float]
    """What it took, by phase."""


def layout_of(model: LoadedModel, cache: CacheConfig) -> KvLayout:
    """Shape of the KV blocks; ConfigError when no request fills one."""
    layout = model.block_layout(cache.block_size)
    if layout.block_size > model.max_model_len:
        raise ConfigError(
            f"--block-size is {layout.block_size}, but requests have at most {model.max_model_len}"
            " tokens (--max-model-len)"
        )
    return layout


def fitting(scheduler: SchedulerConfig, model: LoadedModel) -> SchedulerConfig:
    """The settings with a budget that a prompt fits into, where it cannot be cut."""
    num_tokens = num_step_tokens(
        scheduler.max_num_batched_tokens, model.max_model_len, causal=model.shape.causal
    )
    return replace(scheduler, max_num_batched_tokens=num_tokens)


def max_num_blocks(model: LoadedModel, layout: KvLayout, scheduler: SchedulerConfig) -> int | None:
    """What a step can use at most, where nothing is kept for the next one."""
    if model.shape.causal:
        return None
    step = StepLimits(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, model.max_model_len)
    return num_step_blocks(step, layout.block_size)
