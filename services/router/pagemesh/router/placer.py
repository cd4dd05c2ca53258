"""Where requests go, as those see it who send them there: what is to be placed, and where it was placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagemesh.router.prefix_metrics import PrefixQuery
from pagemesh.router.routing.candidate import WorkerFacts
from pagemesh.router.routing.decision import Decision
from pagemesh.router.routing.in_flight import Flight
from pagemesh.router.routing.route import Route
from pagemesh.router.session import Sink
from pagemesh.v1 import decode_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for a place."""

    token_ids: Sequence[int]
    """Whose KV is needed."""

    max_tokens: int
    """That may be generated behind them."""

    is_prefillable: bool
    """Whether they may be computed elsewhere than where it runs."""

    is_cacheable: bool
    """Whether KV of them that is there already is of use; else every token has to be computed."""

    cache_salt: bytes
    """Of the names of their blocks."""

    client_session: bytes
    """What belongs together has the same; empty for what belongs to nothing."""

    excluded_worker_ids: frozenset[str] = frozenset()
    """Workers that neither run it nor send it KV, unless one of them is the `left_worker`."""

    is_retry: bool = False
    """Whether another worker had it before."""

    model_fingerprint: str | None = None
    """Of the model that has answered a part of the client's request, and has to answer the rest; None before."""

    arithmetic: str | None = None
    """Class of the arithmetic of the worker that made the last of its tokens, to be kept if any other worker has it;
    None where it has none."""

    left_worker: WorkerFacts | None = None
    """A decode worker that is about to stop, perhaps no member of the mesh any more, and has KV of all full blocks."""


class SubmitSession(Protocol):
    """Where requests are sent to their worker, as `WorkerSession` does it."""

    @property
    def is_live(self) -> bool:
        """Whether requests can be submitted and would be taken."""
        ...

    def submit(self, submit: decode_pb2.Submit, sink: Sink) -> int:
        """Start a request and give it a handle; UnavailableError when the stream is not open."""
        ...

    def cancel(self, handle: int) -> None:
        """End a request early; its sink is not called again. Ended handles are ignored."""
        ...


class Placement(NamedTuple):
    """Where a request goes, already counted there until `flight.end()`."""

    route: Route
    session: SubmitSession
    flight: Flight

    decision: Decision
    """That led to it, or to the placement that it goes beside."""

    query: PrefixQuery | None
    """What is to be accounted for; None for a prompt that no cache can serve, or that another one counts for."""


class Placer(Protocol):
    """Says where requests go, and is told what came of it."""

    async def place(self, wanted: Wanted) -> Placement:
        """Choose workers for a request; raises UnavailableError when no decode worker can take it."""
        ...

    def place_beside(self, placement: Placement) -> Placement:
        """Place a request where another one has, or is about to have, the KV of its prompt."""
        ...

    def on_kv(self, placement: Placement, outcome: types_pb2.KvOutcome) -> None:
        """The first token of a placed request and its prompt's KV are there, or its embedding."""
        ...

    def on_answer(self, num_tokens: int) -> None:
        """An answer ended by itself after so many tokens."""
        ...
