"""The workers of one model, as its `Dispatch` sees them."""

from __future__ import annotations

from pagemesh.errors import UnavailableError
from pagemesh.router.routing.candidate import Role
from pagemesh.router.routing.decider import Decider
from pagemesh.router.routing.seats import SeatCount
from pagemesh.router.workers import Workers


class ModelWorkers:
    """Answers from what they said last, and what the router's decisions have sent there."""

    def __init__(self, workers: Workers, decider: Decider) -> None:
        self._workers = workers
        self._decider = decider

    def seats(self) -> SeatCount:
        """How many requests they can work on."""
        workers = self._workers
        return self._decider.seats(workers.reachable(Role.DECODE), workers.reachable(Role.PREFILL))

    @property
    def is_anybody_expected(self) -> bool:
        """Whether there is a decode worker, or was, that may only be away for a moment."""
        return self._workers.is_anybody_expected

    def num_expected_tokens(self, max_tokens: int) -> int:
        """Tokens that an answer is expected to have which may have so many."""
        return self._decider.answers.num_tokens(max_tokens)

    def nobody(self) -> UnavailableError:
        """That no decode worker can take a request."""
        return self._workers.nobody()
