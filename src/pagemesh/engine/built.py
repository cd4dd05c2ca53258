"""What an engine is put together from, once a model is loaded and its KV cache has its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pagemesh.config import SchedulerConfig
from pagemesh.core.kv import BlockLayout, KvAccess
from pagemesh.engine.runner import Runner
from pagemesh.engine.start_clock import Phase
from pagemesh.models.loader import LoadedModel


class Built(NamedTuple):
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
    layout: BlockLayout

    scheduler: SchedulerConfig
    """With limits that fit the model."""

    built: Built

    identity_trouble: str
    """See `EngineInfo`."""

    seconds: Mapping[Phase, float]
    """What it took, by phase."""
