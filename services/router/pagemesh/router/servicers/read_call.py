"""Reads a call's metadata and deadline."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import grpc

from pagemesh.router.call import Call
from pagemesh.rpc.call_context import CallContext, bind_call, current_call
from pagemesh.rpc.deadlines import time_left
from pagemesh.telemetry.trace_context import NO_TRACE, new_trace

AnyContext = grpc.aio.ServicerContext[Any, Any]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def read_call(context: AnyContext, request_timeout: float) -> Call:
    """Request id, trace and deadline, to which the task is bound; DeadlineError when that is over."""
    given = current_call()
    request_id = given.request_id
    if not _REQUEST_ID.fullmatch(request_id):
        # None, or nothing that should be echoed into ids and logs.
        request_id = uuid.uuid4().hex
    trace = new_trace() if given.trace == NO_TRACE else given.trace
    deadline = asyncio.get_running_loop().time() + time_left(request_timeout, context)
    bind_call(CallContext(request_id, trace, deadline))
    return Call(request_id=request_id, trace=trace, deadline=deadline, created=int(time.time()))
