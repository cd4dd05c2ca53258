"""What a task knows of the call that it works for, and tells the next hop."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from opentelemetry.trace import INVALID_SPAN

from pagemesh.errors import DeadlineError
from pagemesh.rpc.call_context import (
    CallContext,
    bind_call,
    call_timeout,
    current_call,
    outgoing_metadata,
    read_metadata,
    run_for,
)
from pagemesh.telemetry.spans import read_trace, write_trace

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_metadata_goes_on_as_it_came() -> None:
    metadata = (("x-request-id", "r"), ("traceparent", PARENT), ("tracestate", "a=1"))
    bind_call(*read_metadata((("user-agent", "x"), *metadata), None))
    assert outgoing_metadata() == metadata
    assert structlog.contextvars.get_contextvars() == {
        "request_id": "r",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


async def test_several_states_are_one_and_a_malformed_trace_is_none() -> None:
    states = (("tracestate", "a=1"), ("tracestate", "b=2"))
    _, caller = read_metadata((*states, ("traceparent", PARENT)), None)
    assert write_trace(caller) == {"traceparent": PARENT, "tracestate": "a=1,b=2"}
    _, nobody = read_metadata((*states, ("traceparent", "00-nonsense")), None)
    assert nobody is INVALID_SPAN


@pytest.mark.parametrize("request_id", ["", "caf\u00e9", "two\nlines"])
async def test_an_id_that_metadata_cannot_have_is_left_out(request_id: str) -> None:
    bind_call(CallContext(request_id), read_trace(PARENT))
    assert outgoing_metadata() == (("traceparent", PARENT),)


async def test_a_call_gets_what_its_caller_has_left() -> None:
    loop = asyncio.get_running_loop()
    assert call_timeout(5.0) == 5.0
    bind_call(CallContext(deadline=loop.time() + 2.0), INVALID_SPAN)
    assert 1.5 < call_timeout(5.0) <= 2.0
    assert call_timeout(0.5) == 0.5
    bind_call(*read_metadata((), 0.0))
    with pytest.raises(DeadlineError, match="deadline is over"):
        call_timeout(5.0)


async def test_tasks_work_for_the_call_that_they_were_started_for() -> None:
    async def seen() -> str:
        return current_call().request_id

    bind_call(CallContext("mine"), INVALID_SPAN)
    task = run_for(CallContext("another"), INVALID_SPAN, asyncio.create_task, seen())
    assert (await task, await asyncio.create_task(seen())) == ("another", "mine")
