"""What a loaded model makes of the settings: the shape of its blocks, the budget of a step, the most blocks."""

from __future__ import annotations

from dataclasses import replace

from pagemesh.config import CacheConfig, SchedulerConfig
from pagemesh.core.kv import BlockLayout
from pagemesh.errors import ConfigError
from pagemesh.models.loader import LoadedModel
from pagemesh.sizing.plan import StepLimits, num_step_blocks, num_step_tokens


def layout_of(model: LoadedModel, cache: CacheConfig) -> BlockLayout:
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


def max_num_blocks(
    model: LoadedModel, layout: BlockLayout, scheduler: SchedulerConfig
) -> int | None:
    """What a step can use at most, where nothing is kept for the next one."""
    if model.shape.causal:
        return None
    step = StepLimits(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, model.max_model_len)
    return num_step_blocks(step, layout.block_size)
