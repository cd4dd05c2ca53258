"""One client's prompts on their way to vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from google.protobuf import duration_pb2
from prometheus_client import Counter

from pagemesh.errors import DeadlineError, InternalError, PagemeshError, UnavailableError
from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import Embeddings
from pagemesh.router.planner import Placement, Planner
from pagemesh.rpc.status import make_error
from pagemesh.v1 import decode_pb2, types_pb2

_DEADLINE_GRACE_S: Final = 1.0
"""The worker ends a late request itself; the router does it this much later if it stays silent."""


class _Running:
    """One prompt."""

    def __init__(self, index: int, token_ids: Sequence[int]) -> None:
        self.index = index
        self.token_ids = token_ids
        self.placement: Placement | None = None
        self.handle = 0

    def end(self) -> None:
        """Give its place back and, if it still runs, cancel it on the worker."""
        if self.placement is not None:
            self.placement.session.cancel(self.handle)
            self.placement.flight.end()
            self.placement = None


_Event = tuple[_Running, decode_pb2.RequestOutput] | PagemeshError
"""A prompt and the last output of its worker; or why the job as a whole ends."""


class EmbeddingJob:
    """Runs once. Nothing is left on the workers, however it ends."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        call: Call,
        priority: int,
        planner: Planner,
        resubmitted: Counter,
    ) -> None:
        self._prompts = [_Running(index, token_ids) for index, token_ids in enumerate(prompts)]
        self._call = call
        self._priority = priority
        self._planner = planner
        self._resubmitted = resubmitted
        self._loop = asyncio.get_running_loop()
        # At most two entries per prompt.
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._resubmissions: set[int] = set()

    def fail(self, error: PagemeshError) -> None:
        """Have `run` raise this, if it still runs."""
        self._events.put_nowait(error)

    async def run(self) -> Embeddings:
        """Embed all prompts; raises a PagemeshError when one of them cannot be embedded."""
        expired = DeadlineError("the request took longer than it was given")
        timer = self._loop.call_at(self._call.deadline + _DEADLINE_GRACE_S, self.fail, expired)
        try:
            for running in self._prompts:
                await self._submit(running, frozenset())
            ends: dict[int, decode_pb2.RequestOutput] = {}
            while len(ends) < len(self._prompts):
                # Ends at the latest with the deadline's entry.
                event = await self._events.get()
                if isinstance(event, PagemeshError):
                    raise event
                running, output = event
                if output.finish_reason == types_pb2.FINISH_REASON_ERROR:
                    await self._recover(running, output.error)
                else:
                    ends[running.index] = _checked(output)
                    running.end()
        finally:
            timer.cancel()
            for running in self._prompts:
                running.end()
        return Embeddings(
            vectors=[ends[running.index].embedding for running in self._prompts],
            num_prompt_tokens=sum(len(running.token_ids) for running in self._prompts),
            num_cached_tokens=sum(o.prompt_usage.cached_token_count for o in ends.values()),
        )

    async def _submit(self, running: _Running, excluded: frozenset[str]) -> None:
        placement = await self._planner.place(running.token_ids, 0, excluded, is_prefillable=False)
        running.placement, running.handle = placement, 0
        remaining = self._call.deadline - self._loop.time()
        if remaining <= 0:
            raise DeadlineError("the request's time was over before a worker could start it")
        timeout = duration_pb2.Duration()
        timeout.FromNanoseconds(int(remaining * 1e9))
        suffix = f"-{running.index}" if len(self._prompts) > 1 else ""
        submit = decode_pb2.Submit(
            request_id=self._call.request_id + suffix,
            prompt_token_ids=running.token_ids,
            timeout=timeout,
            priority=self._priority,
            traceparent=self._call.trace.traceparent,
            tracestate=self._call.trace.tracestate,
            embed=True,
        )
        running.handle = placement.session.submit(
            submit, lambda output: self._events.put_nowait((running, output))
        )

    async def _recover(self, running: _Running, error: types_pb2.Error) -> None:
        """Try another worker, once, if the first was lost; else raise."""
        cause = make_error(error.code, error.reason, error.message, error.param or None)
        lost = running.placement
        running.end()
        if (
            lost is None
            or not isinstance(cause, UnavailableError)
            or running.index in self._resubmissions
        ):
            raise cause
        self._resubmissions.add(running.index)
        try:
            await self._submit(running, frozenset({lost.route.decode.worker_id}))
        except PagemeshError:
            # That there is nobody else is not what went wrong.
            raise cause from None
        self._resubmitted.inc()


def _checked(output: decode_pb2.RequestOutput) -> decode_pb2.RequestOutput:
    if output.finish_reason == types_pb2.FINISH_REASON_CANCELLED:
        raise UnavailableError("the worker cancelled the request")
    if not output.embedding:
        raise InternalError("the worker ended the request without an embedding")
    return output
