"""Reads a call's metadata and deadline."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import grpc
from opentelemetry import trace

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.tenants.caller import current_caller
from pagemesh.rpc.call_context import (
    TIMEOUT_KEY,
    CallContext,
    bind_call,
    call_timeout,
    current_call,
)
from pagemesh.telemetry.spans import new_trace

AnyContext = grpc.aio.ServicerContext[Any, Any]

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def read_call(request_timeout: float) -> Call:
    """Request id, trace and deadline of the RPC whose task this is; DeadlineError when that is over.

    The task is bound to them. InvalidRequestError for a timeout that is no number of seconds.
    """
    given = current_call()
    request_id = given.request_id
    if not _REQUEST_ID.fullmatch(request_id):
        # None, or nothing that should be echoed into ids and logs.
        request_id = uuid.uuid4().hex
    span = trace.get_current_span()
    if not span.get_span_context().is_valid:
        span = new_trace()
    limit = min(request_timeout, _seconds(given.timeout)) if given.timeout else request_timeout
    deadline = asyncio.get_running_loop().time() + call_timeout(limit)
    bind_call(CallContext(request_id, deadline), span)
    return Call(
        request_id=request_id,
        span=span,
        deadline=deadline,
        created=int(time.time()),
        tenant=current_caller().tenant.name,
        session_id=given.session_id,
    )


def _seconds(text: str) -> float:
    seconds = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not seconds:
        raise InvalidRequestError(
            f"{TIMEOUT_KEY} is {text!r}, but must be a number of seconds above 0", param=TIMEOUT_KEY
        )
    return seconds
