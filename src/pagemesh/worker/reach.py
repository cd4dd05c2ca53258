"""The `Peers` service: this worker tries whether it reaches others, as it would have to for their KV."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final

import grpc

from pagemesh.errors import InvalidRequestError
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.server import GrpcServer
from pagemesh.v1 import process_pb2, process_pb2_grpc, types_pb2
from pagemesh.worker.worker import Worker

PEERS_SERVICE: Final = process_pb2.DESCRIPTOR.services_by_name["Peers"].full_name

MAX_PEERS: Final = 64
"""In one request, as process.proto says."""

MAX_SECONDS: Final = 10.0
"""For each of them, likewise."""


def add_peers(server: GrpcServer, worker: Worker) -> None:
    """Have the worker's server serve it."""
    server.add(process_pb2_grpc.add_PeersServicer_to_server, PeersServicer(worker))


class PeersServicer(process_pb2_grpc.PeersServicer):
    """Opens a channel of its own for every attempt: one that is open already would prove nothing."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Reach(  # noqa: N802  # the name of the RPC
        self,
        request: process_pb2.ReachRequest,
        context: grpc.aio.ServicerContext[process_pb2.ReachRequest, process_pb2.ReachResponse],
    ) -> process_pb2.ReachResponse:
        """Tries all of them at the same time."""
        if len(request.peers) > MAX_PEERS:
            raise InvalidRequestError(
                f"peers has {len(request.peers)} workers, but {MAX_PEERS} are the most",
                param="peers",
            )
        seconds = request.timeout.ToTimedelta().total_seconds()
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidRequestError(
                f"timeout is {seconds:g} s, but must be more than 0 and at most {MAX_SECONDS:g} s",
                param="timeout",
            )
        # Each has this time itself; a channel may take a moment to close.
        async with asyncio.timeout(seconds + 1):
            reached = await asyncio.gather(
                *(_reach(peer, seconds, self._worker.identity) for peer in request.peers)
            )
        return process_pb2.ReachResponse(peers=reached)

    async def Introduce(  # noqa: N802  # the name of the RPC
        self,
        request: process_pb2.IntroduceRequest,
        context: grpc.aio.ServicerContext[
            process_pb2.IntroduceRequest, process_pb2.IntroduceResponse
        ],
    ) -> process_pb2.IntroduceResponse:
        """Says who this worker is."""
        return process_pb2.IntroduceResponse(worker_id=self._worker.info.worker_id)


async def _reach(
    peer: types_pb2.PeerWorker, seconds: float, identity: Identity | None
) -> process_pb2.ReachedPeer:
    found = process_pb2.ReachedPeer(worker_id=peer.worker_id)
    began_at = time.monotonic()
    async with open_channel(peer.address, MeshRole.WORKER, identity) as channel:
        stub: process_pb2_grpc.PeersAsyncStub = process_pb2_grpc.PeersStub(channel)
        try:
            answer = await stub.Introduce(process_pb2.IntroduceRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            found.error = f"{error.code().name}: {error.details()}"
        else:
            found.answered_by = answer.worker_id
    found.time.FromTimedelta(timedelta(seconds=time.monotonic() - began_at))
    return found
