"""Which requests are in the batches that were planned and are not computed yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pagemesh.scheduler.batch import Batch
from pagemesh.scheduler.request import Request

MAX_FLIGHTS: Final = 2
"""A batch that is computed, and the one behind it: only of the first may tokens be unknown."""


class Flights:
    """Batches in the order of their launches, which is that of their landings.

    A request stays itself in here whatever becomes of it meanwhile; its id may be somebody else's by then.
    """

    def __init__(self) -> None:
        self._requests: deque[Sequence[Request]] = deque()

    def check_room(self) -> None:
        """Assert that one more batch may be planned."""
        assert len(self._requests) < MAX_FLIGHTS, "too many steps are in flight"

    def launch(self, requests: Sequence[Request]) -> None:
        """A batch was planned, whose sequences are theirs; none for an empty one."""
        if requests:
            self._requests.append(requests)

    def land(self, batch: Batch) -> Sequence[Request]:
        """The first batch was computed: whose its sequences are, in their order."""
        requests = self._requests.popleft() if batch.sequences else ()
        for request in requests:
            request.num_flights -= 1
        return requests
