"""Asks one process what it is, within a time limit, and makes something of the silence if there is no answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.cli.doctor.facts import Examined, Fault, Lead, Reading
from pagemesh.client.credentials import Metadata
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.v1 import process_pb2, process_pb2_grpc

_ANOTHER_TRY_S: Final = 1.0
"""With so much time left, a busy machine that did not answer an attempt to connect gets another."""

# What gRPC says where a status code alone does not tell, in the words of all releases that may be installed.
_TEXTS: Final = (
    ("Connection refused", Fault.NOBODY),
    ("lookup", Fault.NO_NAME),
    ("DNS resolution failed", Fault.NO_NAME),
    ("unreachable", Fault.NO_WAY),
    ("No route", Fault.NO_WAY),
    ("Ssl handshake", Fault.UNTRUSTED),
    ("SSL", Fault.UNTRUSTED),
    ("certificate", Fault.UNTRUSTED),
    ("verification check failed", Fault.UNTRUSTED),
    ("SETTINGS frame as the first", Fault.STRANGER),
    ("http1.x server", Fault.STRANGER),
    ("Connection reset", Fault.STRANGER),
    ("Socket closed", Fault.STRANGER),
    ("timed out", Fault.SILENT),
    ("timeout", Fault.SILENT),
)
_ROLES: Final = {"router": MeshRole.ROUTER, "kvstore": MeshRole.KVSTORE}
"""What their certificates must say; all others are workers."""

_CODES: Final = {
    grpc.StatusCode.PERMISSION_DENIED: Fault.NOT_ALLOWED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.SILENT,
    grpc.StatusCode.UNAUTHENTICATED: Fault.NO_KEY,
    grpc.StatusCode.UNIMPLEMENTED: Fault.OLD,
}


def fault_of(error: grpc.aio.AioRpcError) -> Fault:
    """What a failed question means."""
    if error.code() in _CODES:
        return _CODES[error.code()]
    details = error.details() or ""
    return next((fault for text, fault in _TEXTS if text in details), Fault.OTHER)


async def describe(channel: grpc.aio.Channel, seconds: float, metadata: Metadata) -> Reading:
    """One answer, with what it says of the clock; AioRpcError without one."""
    stub: process_pb2_grpc.ProcessAsyncStub = process_pb2_grpc.ProcessStub(channel)
    began_at = time.time()
    said = await stub.Describe(process_pb2.DescribeRequest(), timeout=seconds, metadata=metadata)
    ended_at = time.time()
    now = said.now.ToNanoseconds() / 1e9
    return Reading(said, now - (began_at + ended_at) / 2, max(0.0, ended_at - began_at) / 2)


def metadata_for(label: str, metadata: Metadata) -> Metadata:
    """Nobody but routers is given the key: at an address that has changed hands, anybody may listen."""
    return metadata if label == "router" else ()


def open_to(lead: Lead, identity: Identity | None) -> grpc.aio.Channel:
    """A channel to whoever is said to be there, and with an identity to nobody else."""
    return open_channel(lead.address, _ROLES.get(lead.label, MeshRole.WORKER), identity)


async def examine(
    lead: Lead, deadline: float, metadata: Metadata, identity: Identity | None
) -> Examined:
    """What is at an address, asked until the loop's time `deadline`."""
    examined = Examined(lead.address, (lead,))
    loop = asyncio.get_running_loop()
    if loop.time() >= deadline:
        return replace(examined, fault=Fault.UNASKED)
    while True:
        try:
            async with open_to(lead, identity) as channel:
                serves = await _serves(channel, deadline - loop.time(), metadata)
                # The channel is open by now: its making does not count as time on the way.
                reading = await describe(channel, deadline - loop.time(), metadata)
                return replace(examined, readings=(reading,), serves=serves)
        except grpc.aio.AioRpcError as error:
            fault = fault_of(error)
            if fault is not Fault.SILENT or deadline - loop.time() < _ANOTHER_TRY_S:
                return replace(examined, fault=fault, detail=error.details() or error.code().name)


async def _serves(channel: grpc.aio.Channel, seconds: float, metadata: Metadata) -> bool | None:
    # The library's stubs for type checkers know no methods.
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(
            health_pb2.HealthCheckRequest(), timeout=seconds, metadata=metadata
        )
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED):
            return None
        raise
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
