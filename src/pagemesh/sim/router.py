"""A modelled router around a real `Decider`, which has the policy and the books of what is in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pagemesh.config import RoutingConfig
from pagemesh.router.routing.candidate import RouteRequest
from pagemesh.router.routing.decider import Decider, num_servable_tokens
from pagemesh.router.routing.in_flight import Flight
from pagemesh.router.routing.route import Route
from pagemesh.sim.clock import Clock
from pagemesh.sim.index import KvStore
from pagemesh.sim.model import MeshModel
from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.submission import Submission
from pagemesh.sim.trace import Namer, TraceRequest
from pagemesh.sim.view import MODEL_NAME, Roster
from pagemesh.sim.worker import Worker


class Site(Protocol):
    """What all routers of a mesh have in common."""

    @property
    def clock(self) -> Clock:
        """The time."""
        ...

    @property
    def model(self) -> MeshModel:
        """What the mesh is like."""
        ...

    @property
    def kvstore(self) -> KvStore:
        """Who holds what."""
        ...

    @property
    def namer(self) -> Namer:
        """How blocks are named."""
        ...

    @property
    def workers(self) -> Mapping[str, Worker]:
        """Where requests are sent."""
        ...


class Router:
    """One router of several, with its own view of what is in flight."""

    def __init__(
        self,
        site: Site,
        roster: Roster,
        routing: RoutingConfig,
        max_waiting_requests: int,
        request_timeout: float,
    ) -> None:
        self.site = site
        self._roster = roster
        self._decider = Decider(routing, site.clock.time)
        self._max_waiting_requests = max_waiting_requests
        self._request_timeout = request_timeout
        self._num_requests = 0

    def take(self, request: TraceRequest, record: Record, on_end: Callable[[], None]) -> None:
        """A client asks; `on_end` is called once, when the record has its outcome."""
        if self._num_requests >= self._max_waiting_requests:
            record.outcome, record.ended_at = Outcome.REJECTED, self.site.clock.now
            on_end()
            return
        self._num_requests += 1

        def end() -> None:
            self._num_requests -= 1
            on_end()

        call = Call(self, request, record, end)
        clock = self.site.clock
        clock.after(self.site.model.router_seconds, call.place)
        clock.after(self._request_timeout, call.expire)

    def describe(self, request: TraceRequest, excluded: frozenset[str]) -> RouteRequest:
        """A request as decisions see it."""
        names = self.site.namer(request, request.num_prompt_tokens // self.site.model.block_size)
        wanted = names and self._decider.names_blocks
        return RouteRequest(
            model_name=MODEL_NAME,
            num_prompt_tokens=request.num_prompt_tokens,
            num_total_tokens=request.num_total_tokens,
            block_names={self._roster.naming: names} if wanted else {},
            excluded_worker_ids=excluded,
            is_prefillable=True,
        )

    def decide(self, request: TraceRequest, wanted: RouteRequest, record: Record) -> Route | None:
        """The decision of this moment; None when nobody can run the request."""
        site, roster = self.site, self._roster
        block_size = site.model.block_size
        names = site.namer(request, request.num_prompt_tokens // block_size)
        known = site.kvstore.lookup(names)
        held = known if self._decider.uses_index else {}
        decision = self._decider.decide(roster.facts, held, wanted, roster.unreachable)
        if decision is None:
            return None
        self._account(record, known, decision.route)
        return decision.route

    def begin(self, route: Route, wanted: RouteRequest) -> Flight:
        """Count a request on its workers."""
        return self._decider.begin(route, wanted)

    def on_answer(self, num_tokens: int) -> None:
        """An answer ended after so many tokens."""
        self._decider.answers.observe(num_tokens)

    def _account(self, record: Record, known: Mapping[str, int], route: Route) -> None:
        """As `Decision` counts it, whether or not the policy asks the index."""

        def tokens(worker_ids: Iterable[str]) -> int:
            num_blocks = max((known.get(each, 0) for each in worker_ids), default=0)
            block_size = self.site.model.block_size
            return num_servable_tokens(num_blocks, record.num_prompt_tokens, block_size)

        record.num_available_tokens = tokens(known)
        record.num_captured_tokens = tokens(worker.worker_id for worker in route.on_the_way)
        record.decode_id = route.decode.worker_id
        record.prefill_id = "" if route.prefill is None else route.prefill.worker_id


class Call:
    """One request of a client at a router, from its admission to its end."""

    def __init__(
        self, router: Router, request: TraceRequest, record: Record, on_end: Callable[[], None]
    ) -> None:
        self._router = router
        self._request = request
        self._record = record
        self._on_end = on_end
        self._flight: Flight | None = None
        self._submission: Submission | None = None
        self._lost_ids: frozenset[str] = frozenset()

    def place(self) -> None:
        """Choose its workers and send it there."""
        if self._record.outcome is not None:
            return
        wanted = self._router.describe(self._request, self._lost_ids)
        route = self._router.decide(self._request, wanted, self._record)
        if route is None:
            self._end(Outcome.LOST if self._lost_ids else Outcome.REJECTED)
            return
        site = self._router.site
        worker = site.workers[route.decode.worker_id]
        worker.num_assigned += 1
        self._flight = self._router.begin(route, wanted)
        num_blocks = self._request.num_total_tokens // site.model.block_size
        names = site.namer(self._request, num_blocks)
        self._submission = Submission(
            worker, site.workers, self._request, names, route.plan, site.model, self
        )
        self._submission.start()

    def expire(self) -> None:
        """Its time is over."""
        if self._record.outcome is None:
            self._end(Outcome.TIMED_OUT)

    def on_first_token(self) -> None:
        if self._record.outcome is None:
            self._record.first_token_at = self._router.site.clock.now

    def on_kv(self) -> None:
        if self._record.outcome is None and self._flight is not None:
            self._flight.end_prefill()

    def on_end(self) -> None:
        if self._record.outcome is None:
            self._end(Outcome.COMPLETED)
            self._router.on_answer(self._record.num_generated_tokens)

    def on_lost(self) -> None:
        """See `SubmissionClient`: tried once more, if nothing was streamed yet."""
        if self._record.outcome is not None:
            return
        if self._record.first_token_at is not None or self._lost_ids:
            self._end(Outcome.LOST)
            return
        self._lost_ids = frozenset({self._record.decode_id})
        self._leave()
        self.place()

    def _leave(self) -> None:
        """Give its place on the workers back."""
        if self._flight is not None:
            self._flight.end()
        if self._submission is not None:
            self._submission.cancel()

    def _end(self, outcome: Outcome) -> None:
        record, submission = self._record, self._submission
        record.outcome, record.ended_at = outcome, self._router.site.clock.now
        if submission is not None:
            record.num_delivered_tokens = submission.num_delivered_tokens
            record.path = submission.path
            if record.first_token_at is not None:
                record.num_generated_tokens = submission.job.num_generated_tokens
        self._leave()
        self._on_end()
