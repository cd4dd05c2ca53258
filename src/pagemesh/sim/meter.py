"""What a modelled engine has done, and what it reports of itself."""

from __future__ import annotations

from dataclasses import replace

from pagemesh.core.load import EngineLoad
from pagemesh.scheduler.estimates import STEP_MEMORY
from pagemesh.sim.job import JobState
from pagemesh.sim.model import PrefillModel, WorkerModel
from pagemesh.sim.planner import StepPlanner
from pagemesh.sim.step import Step


class EngineMeter:
    """Counts steps; has measured the rates of prompts from the first one on."""

    def __init__(self, model: WorkerModel, measured: PrefillModel | None) -> None:
        """`measured` in place of what prompts cost."""
        self._model = model
        self._measured = measured
        # Of late prompts, as `StepCosts` remembers them.
        self._prompt_tokens = 0.0
        self._prompt_pairs = 0.0
        self._prompt_seconds = 0.0
        self._prompt_elapsed = 0.0
        self.busy_seconds = 0.0
        """Of a core, for all steps."""
        self.num_computed_tokens = 0
        """Tokens of prompts and decodes."""

    def observe(self, step: Step, seconds: float, elapsed: float) -> None:
        """A step, or a run of them, was computed in so many seconds of a core, and so many in all."""
        self.busy_seconds += seconds
        num_tokens = step.num_prompt_tokens
        self.num_computed_tokens += num_tokens + step.num_decodes * step.num_steps
        if num_tokens:
            self._prompt_tokens = STEP_MEMORY * self._prompt_tokens + num_tokens
            self._prompt_pairs = STEP_MEMORY * self._prompt_pairs + step.num_prompt_pairs
            self._prompt_seconds = STEP_MEMORY * self._prompt_seconds + seconds
            self._prompt_elapsed = STEP_MEMORY * self._prompt_elapsed + elapsed

    def load(self, planner: StepPlanner, num_free_blocks: int) -> EngineLoad:
        """As a real engine reports it, of the last step boundary."""
        seated = planner.seated
        running = [job for job in seated if job.state is JobState.RUNNING]
        prefilling = [n for job in running if (n := job.num_uncomputed_tokens) != 1]
        load = EngineLoad(
            num_running=len(running),
            num_queued=len(planner.waiting),
            num_waiting=len(planner.waiting) + len(seated) - len(running),
            num_free_blocks=num_free_blocks,
            num_pending_prefill_tokens=sum(prefilling) + planner.num_waiting_tokens,
            num_preemptions=planner.num_preemptions,
        )
        if not self._prompt_tokens:
            return load
        num_decodes = len(running) - len(prefilling)
        num_tokens = sum(job.num_tokens for job in running)
        rate = self._model.prefill_rate(
            self._measured or self._believed(),
            num_decodes,
            num_tokens / len(running) if num_decodes else 0.0,
            self._prompt_pairs / self._prompt_tokens,
        )
        return replace(load, prefill_rate=rate)

    def _believed(self) -> PrefillModel:
        """What prompts cost on cores that were shared as of late."""
        true, stretch = self._model.prefill, self._prompt_elapsed / self._prompt_seconds
        return PrefillModel(
            stretch * true.seconds_per_token,
            stretch * true.seconds_per_pair,
            stretch * true.seconds_per_step,
        )
