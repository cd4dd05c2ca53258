"""The decision: on which worker a request runs, and how the KV of its prompt comes to be there."""

from __future__ import annotations

from dataclasses import dataclass

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.prefill_plan import PrefillPlan


@dataclass(frozen=True, slots=True)
class Route:
    """The decision."""

    decode: Candidate

    plan: PrefillPlan | None = None
    """None where there is nothing to decide: the decode worker computes the prompt, or has its KV."""

    @property
    def prefill(self) -> Candidate | None:
        """The prefill worker that is asked first."""
        return self.plan.workers[0] if self.plan is not None and self.plan.workers else None

    @property
    def on_the_way(self) -> list[Candidate]:
        """Those whose caches serve the prompt: where it runs, is computed, and is pulled from."""
        plan = self.plan
        if plan is None:
            return [self.decode]
        return [self.decode, *plan.workers[:1], *([] if plan.source is None else [plan.source])]
