"""Lets requests with structured output in when their grammars are compiled."""

from __future__ import annotations

from pagemesh.core.load import GrammarTotals
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.errors import PagemeshError
from pagemesh.sampling.structured.constraint import TokenConstraint
from pagemesh.scheduler.limits import StopRules
from pagemesh.scheduler.request import RequestState
from pagemesh.scheduler.request_table import Lifecycle


class ConstraintGate:
    """Until then they are in no queue, so that others overtake them; after that, they have their places."""

    def __init__(self, requests: Lifecycle, stop_rules: StopRules) -> None:
        self._requests = requests
        self._stop_rules = stop_rules
        self.totals = GrammarTotals()

    def open(
        self,
        spec: EngineRequest,
        outcome: TokenConstraint | PagemeshError,
        waited: float | None = None,
    ) -> None:
        """A submitted request's constraint, which has accepted its resumed tokens, or why there is none.

        Counted, with the seconds that it waited, and then ignored when the request is over. Told apart by
        the object, as another may have its id by now.
        """
        self.totals = self.totals.plus(waited)
        request = next((r for r in self._requests.compiling if r.spec is spec), None)
        if request is None:
            return
        if isinstance(outcome, PagemeshError):
            self._requests.finish(request, FinishReason.ERROR, outcome)
            return
        request.constraint = outcome
        self._requests.compiling.remove(request)
        request.state = RequestState.WAITING
        self._requests.waiting.add(request)
        reason = self._stop_rules.reason(request)
        if reason is not None:
            self._requests.finish(request, reason)
