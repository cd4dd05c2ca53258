"""One prompt of a client's request on its worker: sent there, lost, sent to another one, ended.

Where it goes is for others to say, and so is what becomes of the worker's outputs.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final

from pagemesh.errors import DeadlineError, PagemeshError, WorkerLostError
from pagemesh.router.call import Call
from pagemesh.router.in_progress import Failable
from pagemesh.router.placer import Placement
from pagemesh.router.plan_message import plan_to_proto, tell_trace
from pagemesh.router.poison import Company, Suspicion
from pagemesh.router.prefix_metrics import Lookup
from pagemesh.router.routing.candidate import WorkerFacts
from pagemesh.router.session import Sink
from pagemesh.router.tenants.salt import tenant_salt
from pagemesh.rpc.status import make_error
from pagemesh.sampling.structured.outputs import PARAM as STRUCTURED_OUTPUTS
from pagemesh.v1 import decode_pb2, types_pb2

_DEADLINE_GRACE_S: Final = 1.0
"""The worker ends a late request itself; the router does it this much later if it stays silent."""

_OPTIMISM: Final = 2.0
"""A request is refused for its deadline when it would not be met even if its prompt were ready so much sooner."""

_FORM: Final = re.compile(rf"\b{STRUCTURED_OUTPUTS}(\.\w+)?")


@dataclass(slots=True)
class Order:
    """What holds for everything that is sent to workers for one request of a client."""

    call: Call

    priority: int
    """Lower runs first."""

    num_requests: int
    """That are sent: one for each prompt, or for each answer to it."""

    body_salt: str = ""
    """The client's own, which separates its blocks from others of its tenant."""

    form_field: str = STRUCTURED_OUTPUTS
    """What the client calls that which workers know by this name."""

    model_fingerprint: str | None = None
    """Of the model that answers, once it has begun: under its name, another one may come to be served."""

    company: Company = field(default_factory=Company)
    """Of its requests, as suspects."""

    @property
    def cache_salt(self) -> bytes:
        """Salt of the names of all blocks of the request, wherever it runs."""
        return tenant_salt(self.call.tenant, self.body_salt)

    def error(self, error: types_pb2.Error) -> PagemeshError:
        """A worker's error, in the client's words."""
        param, message = error.param, error.message
        if param == STRUCTURED_OUTPUTS != self.form_field:
            param = self.form_field
            # Workers name the kind of the form as well, which a client may have called otherwise.
            message = _FORM.sub(param, message)
        return make_error(error.code, error.reason, message, param or None)

    def fail_when_late(self, job: Failable) -> asyncio.TimerHandle:
        """Have a job fail when its time is over; the timer, to be cancelled with the job's end."""
        return asyncio.get_running_loop().call_at(
            self.call.deadline + _DEADLINE_GRACE_S,
            job.fail,
            DeadlineError("the request took longer than it was given"),
        )


class PlacedRequest:
    """One of an order's requests and its place on a worker. Belongs to one event loop.

    send → lose and send again, as often as its worker goes → end, whatever happened.
    """

    def __init__(self, order: Order, index: int) -> None:
        self._order = order
        self._left: tuple[Placement, int] | None = None
        self._lost_at: float | None = None
        self.index = index
        """Among the order's requests."""
        self.placement: Placement | None = None
        """None before the first `send`, while it has lost its worker, and when it has ended."""
        self.handle = 0
        """On the session of its placement; 0 when it was not submitted."""
        self.num_losses = 0
        """Workers that ended it unfinished, but for those that handed it over."""
        self.suspicion = Suspicion(order.company)
        """Whether its workers died of it."""
        self.arithmetic: str | None = None
        """Class of the arithmetic of the lost worker that made the last of its tokens; None where none did."""

    @property
    def request_id(self) -> str:
        """The client's, with the index where there are several."""
        suffix = f"-{self.index}" if self._order.num_requests > 1 else ""
        return self._order.call.request_id + suffix

    @property
    def is_lost(self) -> bool:
        """Whether a worker has left it unfinished, and none goes on with it yet."""
        return self._lost_at is not None

    @property
    def model_fingerprint(self) -> str | None:
        """Of the model that has answered a part of the order; None before."""
        return self._order.model_fingerprint

    @property
    def has_changed_arithmetic(self) -> bool:
        """Whether it goes on behind tokens that were computed otherwise than those to come."""
        if self.placement is None or self.arithmetic is None:
            return False
        return self.placement.route.decode.facts.arithmetic != self.arithmetic

    @property
    def left_worker(self) -> WorkerFacts | None:
        """The worker that has moved it, and stays to give its KV away; None if there is no such."""
        return None if self._left is None else self._left[0].route.decode.facts

    def error(self, error: types_pb2.Error) -> PagemeshError:
        """A worker's error, in the client's words."""
        return self._order.error(error)

    def send(self, placement: Placement, submit: decode_pb2.Submit, sink: Sink) -> None:
        """Submit it where it was placed; the place is given back by `end` or the next `send`, even when this fails.

        `submit` says what is asked for; name, time, priority, salt, trace and plan are added here. Raises
        DeadlineError when the time is over, UnavailableError when the worker's session has just closed.
        """
        if self.placement is not None:
            # That of a `send` that failed.
            self.placement.flight.end()
        # The old handle means something else on the new session.
        self.placement, self.handle = placement, 0
        self.suspicion.on_sent()
        call = self._order.call
        remaining = call.deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            raise DeadlineError("the request's time was over before a worker could start it")
        submit.request_id = self.request_id
        needed = _least_seconds(placement)
        if remaining < needed and not self.is_lost:
            raise DeadlineError(
                f"the request has {remaining:.3g} s left, and its prompt alone takes more than {needed:.3g} s",
                reason="DEADLINE_UNREACHABLE",
            )
        submit.timeout.FromNanoseconds(int(remaining * 1e9))
        submit.priority = self._order.priority
        submit.cache_salt = self._order.cache_salt
        tell_trace(call.span, submit)
        if placement.route.plan is not None and (plan := plan_to_proto(placement.route.plan)):
            submit.prefill_plan.CopyFrom(plan)
        self.handle = placement.session.submit(submit, sink)

    def note_answer(self) -> None:
        """Its present worker has answered some of it: no other model answers the rest of the order.

        WorkerLostError when one has begun to.
        """
        assert self.placement is not None, "it has no worker"
        facts, order = self.placement.route.decode.facts, self._order
        if order.model_fingerprint not in (None, facts.model_fingerprint):
            raise WorkerLostError(
                f"the model that began to answer is gone: worker {facts.worker_id} runs another one under its name"
            )
        order.model_fingerprint = facts.model_fingerprint
        self.suspicion.on_answer()

    def lose(self, *, keeps_kv: bool) -> None:
        """Its worker has ended it unfinished; with `keeps_kv`, it stays there until somebody has its KV."""
        assert self.placement is not None, "it has no worker"
        placement, handle = self.placement, self.handle
        self.placement = None
        self.suspicion.clear()
        placement.flight.end()
        if keeps_kv:
            self._let_go()
            self._left = placement, handle
        if self._lost_at is None:
            self._lost_at = asyncio.get_running_loop().time()

    def settle(self) -> float | None:
        """It goes on where it is now; gives the seconds for which it stood still, if it was moved.

        WorkerLostError when another part of the order was answered by another model.
        """
        self.note_answer()
        self._let_go()
        lost_at, self._lost_at = self._lost_at, None
        return None if lost_at is None else asyncio.get_running_loop().time() - lost_at

    def end(self) -> None:
        """Give its place back and, if it still runs, cancel it on the worker. Idempotent."""
        self.suspicion.clear()
        self._let_go()
        if self.placement is not None:
            self.placement.session.cancel(self.handle)
            self.placement.flight.end()
            self.placement = None

    def _let_go(self) -> None:
        """Nobody needs the KV any more that a worker which has moved it keeps."""
        if self._left is not None:
            placement, handle = self._left
            placement.session.cancel(handle)
            self._left = None


def _least_seconds(placement: Placement) -> float:
    """In which its prompt may be ready at best; 0 where nobody knows, as caches may hold all of it."""
    query, plan = placement.query, placement.route.plan
    if query is None or query.lookup is not Lookup.ANSWERED or plan is None:
        return 0.0
    return plan.predicted_seconds / _OPTIMISM
