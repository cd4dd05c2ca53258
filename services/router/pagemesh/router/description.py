"""What a router says of itself in `Process.Describe`."""

from __future__ import annotations

from pagemesh.membership.directory import Directory
from pagemesh.router.parity import Parity
from pagemesh.router.session import WorkerSession
from pagemesh.router.session_pool import SessionPool
from pagemesh.v1 import process_pb2, types_pb2


def describe_router(
    described: process_pb2.RouterDescription,
    directory: Directory,
    sessions: SessionPool,
    parity: Parity,
) -> None:
    """Fill in what the router knows at this moment."""
    described.kvstore_addresses.extend(directory.kvstores)
    described.kvstore_address = directory.kvstore
    described.is_following = directory.is_following
    for name, canary in parity.own_canaries():
        described.models.add(name=name, canary=canary)
    degraded = {found.worker_id: found for found in parity.degraded()}
    for worker in directory.workers():
        seen = described.workers.add(worker=worker.info, is_confirmed=worker.live)
        if worker.role == types_pb2.WORKER_ROLE_DECODE:
            _describe_session(sessions.get(worker.worker_id), seen)
        if (found := degraded.get(worker.worker_id)) is not None:
            seen.difference, seen.advice = found.difference.value, found.advice


def _describe_session(session: WorkerSession | None, seen: process_pb2.SeenWorker) -> None:
    seen.session = process_pb2.SESSION_STATE_CLOSED
    if session is None:
        return
    seen.session_end = session.last_end
    if session.is_live:
        seen.session = process_pb2.SESSION_STATE_OPEN
    elif session.is_draining:
        seen.session = process_pb2.SESSION_STATE_DRAINING
