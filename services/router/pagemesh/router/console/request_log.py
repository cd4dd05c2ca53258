"""The latest requests of a router: where each went and why, and what became of it.

Everything is bounded, and told once per request, never per token.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pagemesh.router.generation.request import Usage
from pagemesh.router.route_header import Explanation
from pagemesh.router.routing.ways import Path

MAX_ENDED: Final = 50
"""Requests that are remembered when they are over."""

MAX_RUNNING: Final = 50
"""Running requests that are shown, the latest ones; all are counted."""

MAX_PLACES: Final = 4
"""Decisions that are kept of one request: those of its first prompts, or of its second worker."""

NO_TOKENS: Final = Usage(0, 0, 0)


class Delivery(NamedTuple):
    """How the KV of a prompt really came."""

    path: Path
    num_cached_tokens: int
    seconds: float
    """From submission until the worker could go on by itself."""


@dataclass(slots=True)
class Place:
    """Where a prompt went."""

    explanation: Explanation
    is_retry: bool
    """Another worker had been tried before."""
    delivery: Delivery | None = None
    """None before the prompt's KV is there."""


class Outcome(NamedTuple):
    """What became of a request."""

    end: str
    """stop, length, abort (the client left) or error."""
    error: str | None
    """The error's reason, UPPER_SNAKE_CASE."""
    seconds: float
    time_to_first_token: float | None
    usage: Usage


@dataclass(slots=True)
class RequestRecord:
    """One request."""

    number: int
    """In the order in which this router began with them."""
    request_id: str
    kind: str
    """generate or embed."""
    model_name: str
    num_prompts: int
    num_choices: int
    began_at: float
    """Unix time."""
    usage_so_far: Callable[[], Usage]
    """Of a running request."""
    began: float
    """The same by the monotonic clock."""
    places: list[Place] = field(default_factory=list)
    num_places: int = 0
    """Decisions, also those that are not kept."""
    outcome: Outcome | None = None
    """None while it runs."""
    revision: int = 0
    """Of the log when it ended."""
    row: dict[str, Any] | None = None
    """As it is shown, once it is over and somebody looked."""

    def place(self, explanation: Explanation, *, is_retry: bool) -> None:
        """A decision about one of its prompts."""
        self.num_places += 1
        if len(self.places) < MAX_PLACES:
            self.places.append(Place(explanation, is_retry))

    def deliver(self, explanation: Explanation, delivery: Delivery) -> None:
        """What came of a decision; the answers to one prompt share it, and the first of them tells."""
        for place in self.places:
            if place.explanation.decision is explanation.decision and place.delivery is None:
                place.delivery = delivery
                return


present_record: Final[ContextVar[RequestRecord | None]] = ContextVar("present_record", default=None)
"""The request that a task works for."""


class RequestLog:
    """Running requests and the last ones that ended. Belongs to one event loop."""

    def __init__(
        self,
        now: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_end` is called whenever a request is over."""
        self._on_end = on_end
        self._now = now
        self._timer = timer
        self._next_number = 1
        self._running: dict[int, RequestRecord] = {}
        self._ended: deque[RequestRecord] = deque(maxlen=MAX_ENDED)
        self.revision = 0
        """Grows whenever a request ends."""

    @property
    def num_running(self) -> int:
        """Requests in progress on this router."""
        return len(self._running)

    def begin(
        self,
        kind: str,
        model_name: str,
        request_id: str,
        *,
        num_prompts: int,
        num_choices: int,
        usage_so_far: Callable[[], Usage] = lambda: NO_TOKENS,
    ) -> RequestRecord:
        """A request begins; `end` must follow."""
        record = RequestRecord(
            number=self._next_number,
            request_id=request_id,
            kind=kind,
            model_name=model_name,
            num_prompts=num_prompts,
            num_choices=num_choices,
            began_at=self._now(),
            began=self._timer(),
            usage_so_far=usage_so_far,
        )
        self._next_number += 1
        self._running[record.number] = record
        return record

    def end(
        self,
        record: RequestRecord,
        end: str,
        usage: Usage,
        error: str | None = None,
        time_to_first_token: float | None = None,
    ) -> None:
        """A request is over, however it ended."""
        del self._running[record.number]
        # What it ran on must not be kept.
        record.usage_so_far = lambda: usage
        seconds = self.seconds(record)
        record.outcome = Outcome(end, error, seconds, time_to_first_token, usage)
        self.revision += 1
        record.revision = self.revision
        self._ended.append(record)
        self._on_end()

    def seconds(self, record: RequestRecord) -> float:
        """Since it began."""
        return self._timer() - record.began

    def changed(self, since: int) -> list[RequestRecord]:
        """Those that ended after a revision and those that run, in the order of their beginning."""
        ended = [record for record in self._ended if record.revision > since]
        running = list(self._running.values())[-MAX_RUNNING:]
        return sorted([*ended, *running], key=lambda record: record.number)
