"""An engine without a model: a worker over it moves KV as always, and computes nothing beside that.

Scheduler, block pool and KV memory are the real ones, so what is measured of a transfer is the transfer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo, StepListener, StepOutput
from pagemesh.core.kv import KvLayout
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.kv_memory.memory import KvMemory, open_memory
from pagemesh.scheduler.batch import Batch, BlockMoves, StepResult
from pagemesh.scheduler.scheduler import Scheduler

VOCAB_SIZE = 32_000


@dataclass(frozen=True)
class HollowSettings:
    """What a hollow engine is made of."""

    layout: KvLayout
    model_fingerprint: str
    num_blocks: int
    bytes_per_second: float = 0.0
    """Of KV that it pretends to compute; 0 means no limit."""
    step_tokens: int = 1 << 20
    """Most prompt tokens in a step."""


@dataclass(frozen=True)
class Import:
    """One import of the engine."""

    seconds: float
    """From the grant to the end of the lease."""
    num_valid_tokens: int


class _HollowStep:
    """Has sampled the same token for everybody."""

    def __init__(self, num_sampled: int) -> None:
        self._num_sampled = num_sampled

    def sample(self) -> None:
        """Nothing is left to do."""

    def result(self) -> StepResult:
        return StepResult([1] * self._num_sampled)


class _HollowRunner:
    """Takes the time that the tokens would take, and writes nothing."""

    def __init__(self, seconds_per_token: float) -> None:
        self._seconds_per_token = seconds_per_token
        self._busy_until = 0.0

    def move(self, moves: BlockMoves) -> None:
        """No KV is worth moving."""

    def launch(self, batch: Batch, watch: LayerProgress | None = None) -> _HollowStep:
        # Against a clock, not by a sleep of its own for each step: late wake-ups must not add up.
        now = time.perf_counter()
        self._busy_until = max(self._busy_until, now) + batch.num_tokens * self._seconds_per_token
        if self._busy_until > now:
            time.sleep(self._busy_until - now)
        return _HollowStep(sum(one.sampling is not None for one in batch.sequences))


class HollowEngine(EngineCore):
    """Exports what lies in its memory, imports what comes; `on_import` is told of each import."""

    def __init__(self, settings: HollowSettings, on_import: Callable[[Import], None]) -> None:
        layout = settings.layout
        info = EngineInfo(
            settings.model_fingerprint,
            layout,
            settings.num_blocks,
            settings.num_blocks * layout.block_size,
            max_num_seqs=8,
        )
        kv = KvMemory(layout, settings.num_blocks, open_memory())
        # Pages that were never written would be a part of what is measured.
        kv.bytes[:] = 0x3C
        pace = 0.0
        if settings.bytes_per_second:
            bytes_per_token = layout.num_bytes / layout.block_size
            pace = bytes_per_token / settings.bytes_per_second
        config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=settings.step_tokens)
        scheduler = Scheduler(info, config, vocab_size=VOCAB_SIZE, enable_prefix_caching=False)
        super().__init__(info, scheduler, _HollowRunner(pace), kv)
        self._on_import = on_import
        self._granted_at: dict[str, float] = {}

    def start(self, listener: StepListener) -> None:
        def note_grants(step: StepOutput) -> None:
            for grant in step.grants:
                self._granted_at[grant.request_id] = time.perf_counter()
            listener(step)

        super().start(note_grants)

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        seconds = time.perf_counter() - self._granted_at.pop(request_id)
        super().finish_import(request_id, num_valid_tokens)
        self._on_import(Import(seconds, num_valid_tokens))


def num_blocks_for(layout: KvLayout, num_bytes: int) -> int:
    """Full blocks in so many bytes."""
    return num_bytes // layout.num_bytes


def prompt_of(num_blocks: int, layout: KvLayout, number: int) -> Sequence[int]:
    """A prompt of so many full blocks; different numbers share none."""
    start = number % (VOCAB_SIZE // 2)
    return [start + index % (VOCAB_SIZE // 2) for index in range(num_blocks * layout.block_size)]
