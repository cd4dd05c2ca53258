"""Messages of a session: a Submit, checked and translated; outputs, merged per request while the router does not read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.trace import Span

from pagemesh.core.request import EngineRequest
from pagemesh.errors import DeadlineError, InvalidRequestError
from pagemesh.messages import prompt_from_proto, require_peer, sampling_from_proto
from pagemesh.sampling.params import SamplingParams
from pagemesh.telemetry.spans import read_trace
from pagemesh.v1 import decode_pb2

DEFAULT_TIMEOUT: Final = 600.0
"""Seconds for a request whose router set none: as long as a router allows by default."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request of a session."""

    handle: int
    client_request_id: str
    request: EngineRequest
    plan: decode_pb2.PrefillPlan | None
    """Where the prompt is prefilled; None means here."""
    timeout: float
    """Seconds that it may take."""
    caller: Span
    """The router's span for it, or whatever that was told by its client."""


def parse_submit(
    submit: decode_pb2.Submit, engine_request_id: str, fork_of: str | None
) -> Submission:
    """Translate; InvalidRequestError or DeadlineError where a router should have refused it.

    `fork_of` is the leader's engine request id, if there is a leader and it is not over.
    """
    prompt = prompt_from_proto(submit.prompt_token_ids, "prompt_token_ids")
    plan = _plan(submit)
    return Submission(
        handle=submit.handle,
        client_request_id=submit.request_id,
        request=EngineRequest(
            request_id=engine_request_id,
            prompt_token_ids=prompt,
            sampling=SamplingParams() if submit.embed else sampling_from_proto(submit.sampling),
            resume_token_ids=tuple(submit.resume_token_ids),
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            await_kv=plan is not None,
            fork_of=fork_of,
            embed=submit.embed,
            normalize=submit.normalize if submit.HasField("normalize") else None,
        ),
        plan=plan,
        timeout=_timeout(submit),
        caller=read_trace(submit.traceparent, submit.tracestate),
    )


def _plan(submit: decode_pb2.Submit) -> decode_pb2.PrefillPlan | None:
    # Log probabilities of a prompt come from computing all of it in one place, which is here.
    if not submit.HasField("prefill_plan") or submit.sampling.HasField("prompt_logprobs"):
        return None
    if submit.fork_of_handle:
        raise InvalidRequestError(
            f"fork_of_handle is {submit.fork_of_handle}, which excludes a prefill_plan",
            param="fork_of_handle",
        )
    _check_plan(submit.prefill_plan)
    return submit.prefill_plan


def _check_plan(plan: decode_pb2.PrefillPlan) -> None:
    peers = [*plan.workers, *([plan.source.worker] if plan.HasField("source") else [])]
    if not peers:
        raise InvalidRequestError("prefill_plan has no workers and no source", param="prefill_plan")
    for peer in peers:
        require_peer(peer, "prefill_plan")
    seconds = plan.overrule_seconds
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidRequestError(
            f"overrule_seconds is {seconds:g}, but must be 0 or more", param="prefill_plan"
        )


def _timeout(submit: decode_pb2.Submit) -> float:
    if not submit.HasField("timeout"):
        return DEFAULT_TIMEOUT
    seconds = submit.timeout.seconds + submit.timeout.nanos / 1e9
    if seconds <= 0:
        raise DeadlineError(f"timeout is {seconds:g} s: the request's time is over")
    return seconds


class OutputBuffer:
    """Outputs not yet sent. Those of one request are merged, so that it cannot outgrow the requests."""

    def __init__(self) -> None:
        self._outputs: dict[int, decode_pb2.RequestOutput] = {}
        self._news = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not self._outputs

    def add(self, output: decode_pb2.RequestOutput) -> None:
        """Have an output sent."""
        pending = self._outputs.get(output.handle)
        if pending is None:
            self._outputs[output.handle] = output
        else:
            pending.MergeFrom(output)  # appends the tokens, sets what was not set
        self._news.set()

    def wake(self) -> None:
        """Have `take` return although there may be nothing."""
        self._news.set()

    async def take(self) -> Sequence[decode_pb2.RequestOutput]:
        """Wait for outputs and take all there are, in the order in which their requests first had any.

        Needs no deadline: a session without traffic is ended by its router or by keepalive.
        """
        await self._news.wait()
        self._news.clear()
        outputs = list(self._outputs.values())
        self._outputs.clear()
        return outputs
