"""One prompt of a client's request on its worker: sent there, lost, sent to another one once, ended.

Where it goes is for others to say, and so is what becomes of the worker's outputs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter

from pagemesh.errors import DeadlineError, PagemeshError, UnavailableError
from pagemesh.router.call import Call
from pagemesh.router.in_progress import Failable
from pagemesh.router.placer import Placement
from pagemesh.router.plan_message import plan_to_proto
from pagemesh.router.session import Sink
from pagemesh.router.tenants.salt import tenant_salt
from pagemesh.rpc.status import make_error
from pagemesh.sampling.structured.outputs import PARAM as STRUCTURED_OUTPUTS
from pagemesh.v1 import decode_pb2, types_pb2

_DEADLINE_GRACE_S: Final = 1.0
"""The worker ends a late request itself; the router does it this much later if it stays silent."""

_FORM: Final = re.compile(rf"\b{STRUCTURED_OUTPUTS}(\.\w+)?")

Resend = Callable[[frozenset[str]], Awaitable[None]]
"""Places a request on a worker other than these, and sends it there; raises a PagemeshError."""


@dataclass(frozen=True, slots=True)
class Order:
    """What holds for everything that is sent to workers for one request of a client."""

    call: Call

    priority: int
    """Lower runs first."""

    num_requests: int
    """That are sent: one for each prompt, or for each answer to it."""

    resubmitted: Counter
    """Counts those that a second worker took over."""

    body_salt: str = ""
    """The client's own, which separates its blocks from others of its tenant."""

    form_field: str = STRUCTURED_OUTPUTS
    """What the client calls that which workers know by this name."""

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

    send → recover, when the worker sends an error → end, whatever happened.
    """

    def __init__(self, order: Order, index: int) -> None:
        self._order = order
        self._num_attempts = 0
        self.index = index
        """Among the order's requests."""
        self.placement: Placement | None = None
        """None before the first `send`, and when it has ended."""
        self.handle = 0
        """On the session of its placement; 0 when it was not submitted."""

    def send(self, placement: Placement, submit: decode_pb2.Submit, sink: Sink) -> None:
        """Submit it where it was placed; the place is given back by `end`, even when this fails.

        `submit` says what is asked for; name, time, priority, salt, trace and plan are added here. Raises
        DeadlineError when the time is over, UnavailableError when the worker's session has just closed.
        """
        self._num_attempts += 1
        # The old handle means something else on the new session.
        self.placement, self.handle = placement, 0
        call = self._order.call
        remaining = call.deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            raise DeadlineError("the request's time was over before a worker could start it")
        suffix = f"-{self.index}" if self._order.num_requests > 1 else ""
        submit.request_id = call.request_id + suffix
        submit.timeout.FromNanoseconds(int(remaining * 1e9))
        submit.priority = self._order.priority
        submit.cache_salt = self._order.cache_salt
        submit.traceparent = call.trace.traceparent
        submit.tracestate = call.trace.tracestate
        if placement.route.plan is not None and (plan := plan_to_proto(placement.route.plan)):
            submit.prefill_plan.CopyFrom(plan)
        self.handle = placement.session.submit(submit, sink)

    async def recover(self, error: types_pb2.Error, resend: Resend, *, is_repeatable: bool) -> None:
        """Try another worker, once, if this error says that the first was lost; else raise it.

        Only what is still `is_repeatable` is tried again.
        """
        cause = self._order.error(error)
        lost = self.placement
        self.end()
        if (
            lost is None
            or not isinstance(cause, UnavailableError)
            or not is_repeatable
            or self._num_attempts > 1
        ):
            raise cause
        try:
            await resend(frozenset({lost.route.decode.worker_id}))
        except PagemeshError:
            # That there is nobody else is not what went wrong.
            raise cause from None
        self._order.resubmitted.inc()

    def end(self) -> None:
        """Give its place back and, if it still runs, cancel it on the worker. Idempotent."""
        if self.placement is not None:
            self.placement.session.cancel(self.handle)
            self.placement.flight.end()
            self.placement = None
