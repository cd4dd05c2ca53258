"""A modelled engine: continuous batching over a real block pool, step after step.

Whatever is asked of it from outside happens between two steps, as with a real one. Steps in which the same
requests decode are taken together, and taken apart again when something is asked in between: the times are
those of single steps.
"""

from __future__ import annotations

from collections.abc import Callable

from pagemesh.cache.block_pool import CacheEvents
from pagemesh.core.load import EngineLoad
from pagemesh.sim.clock import Clock
from pagemesh.sim.cores import Cores
from pagemesh.sim.lifecycle import EngineListener, Jobs
from pagemesh.sim.meter import EngineMeter
from pagemesh.sim.model import PrefillModel, WorkerModel
from pagemesh.sim.planner import StepPlanner
from pagemesh.sim.step import Step
from pagemesh.sim.tables import Tables


class Engine:
    """One incarnation of an engine. After `kill` it does nothing any more."""

    def __init__(
        self,
        clock: Clock,
        model: WorkerModel,
        block_size: int,
        listener: EngineListener,
        cores: Cores,
        measured: PrefillModel | None = None,
    ) -> None:
        """`cores` are those of its machine; `measured` is what it believes that prompts cost, where that is not so."""
        self._clock = clock
        self._model = model
        self._listener = listener
        self._cores = cores
        self.tables = Tables(model.kv_tokens // block_size, block_size)
        self._planner = StepPlanner(model, self.tables, block_size)
        self._commands: list[Callable[[], None]] = []
        self._step: Step | None = None
        # Of the step in progress, so that ends that were given up are not taken for its end.
        self._step_number = 0
        self._is_busy = self._is_dead = False
        self.jobs = Jobs(clock, self._planner, self.tables, listener)
        """For whatever is asked between steps."""
        self.meter = EngineMeter(model, measured)

    @property
    def num_jobs(self) -> int:
        """Jobs that run or wait."""
        return len(self._planner.seated) + len(self._planner.waiting)

    @property
    def num_preemptions(self) -> int:
        """Until now."""
        return self._planner.num_preemptions

    def tell(self, command: Callable[[], None]) -> None:
        """Have something done as soon as no step is being computed."""
        if self._is_dead:
            return
        self._commands.append(command)
        step = self._step
        if step is None:
            self._step_number += 1
            self._clock.at(self._clock.now, lambda number=self._step_number: self._wake(number))  # type: ignore[misc]
        elif step.num_steps > 1:
            passed = self._cores.now - step.began_at_core
            step.num_steps = step.steps_until(self._model, passed)
            self._schedule_end(step)

    def load(self) -> EngineLoad:
        """What it reports, of the last step boundary."""
        return self.meter.load(self._planner, self.tables.pool.num_free_blocks)

    def drain_events(self) -> CacheEvents:
        """What changed in the prefix cache since the last call."""
        return self.tables.drain_events()

    def kill(self) -> None:
        """The process is gone."""
        self._is_dead = True
        self._commands.clear()
        self._set_busy(False)

    def _wake(self, number: int) -> None:
        if number == self._step_number and self._step is None and not self._is_dead:
            self._turn()

    def _turn(self) -> None:
        """Between two steps: do what was asked, then begin the next step."""
        while self._commands:
            commands, self._commands = self._commands, []
            for command in commands:
                command()
        self._step = self._planner.plan(self._clock.now)
        granted, self._planner.granted = self._planner.granted, []
        for job in granted:
            job.owner.on_grant(job)
        self._listener.on_change()
        self._set_busy(self._step is not None)
        if self._step is not None:
            self._begin(self._step)

    def _set_busy(self, is_busy: bool) -> None:
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            self._cores.add_busy(1 if is_busy else -1)

    def _begin(self, step: Step) -> None:
        step.began_at_core = self._cores.now
        for chunk in step.chunks:
            if chunk.job.is_export:
                chunk.job.owner.on_chunk(chunk.job, chunk.start, chunk.end, is_computed=False)
        self._schedule_end(step)

    def _schedule_end(self, step: Step) -> None:
        self._step_number += 1
        ends_at = step.began_at_core + step.seconds(self._model, step.num_steps)
        self._cores.at(ends_at, lambda number=self._step_number: self._end_step(number))  # type: ignore[misc]

    def _end_step(self, number: int) -> None:
        if number != self._step_number or self._is_dead:
            return
        step = self._step
        assert step is not None, "its end was due"
        self._step = None
        seconds, elapsed = (
            step.seconds(self._model, step.num_steps),
            self._clock.now - step.began_at,
        )
        self.meter.observe(step, seconds, elapsed)
        if step.num_steps > 1:
            # Before anybody ends and gives blocks back.
            for job in step.decodes:
                has_room = self.tables.grow(job, step.num_steps)
                assert has_room, "a run of decodes is no longer than there are blocks"
        # Cores that came and went slowed all steps of a run down alike, as far as anybody can tell.
        first_seconds = step.seconds(self._model, 1) * elapsed / seconds
        for job in step.decodes:
            self.jobs.end_decodes(job, step, first_seconds)
        for chunk in step.chunks:
            self.jobs.end_chunk(chunk)
        self._turn()
