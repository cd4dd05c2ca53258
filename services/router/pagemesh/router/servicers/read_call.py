"""Reads a call's metadata and deadline."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import grpc

from pagemesh.router.call import Call
from pagemesh.rpc.boundary import REQUEST_ID_KEY
from pagemesh.rpc.deadlines import time_left

AnyContext = grpc.aio.ServicerContext[Any, Any]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def read_call(context: AnyContext, request_timeout: float) -> Call:
    """Request id, trace context and deadline; raises DeadlineError when the caller's is over."""
    metadata = dict(context.invocation_metadata() or ())
    request_id = str(metadata.get(REQUEST_ID_KEY, ""))
    if not _REQUEST_ID.fullmatch(request_id):
        # None, or nothing that should be echoed into ids and logs.
        request_id = uuid.uuid4().hex
    return Call(
        request_id=request_id,
        traceparent=str(metadata.get("traceparent", "")),
        deadline=asyncio.get_running_loop().time() + time_left(request_timeout, context),
        created=int(time.time()),
    )
