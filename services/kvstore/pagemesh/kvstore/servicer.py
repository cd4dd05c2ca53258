"""The KvStore service: messages in, calls of the catalog, messages out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import grpc
from opentelemetry import trace

from pagemesh.errors import InvalidRequestError
from pagemesh.identity.roles import MeshRole
from pagemesh.kvstore.catalog import Catalog
from pagemesh.kvstore.feed import Feed
from pagemesh.kvstore.housekeeping import until_set
from pagemesh.kvstore.known_peers import watcher_address
from pagemesh.kvstore.members import PublishStream
from pagemesh.kvstore.messages import split_hashes, watch_response, worker_event
from pagemesh.messages import digest_to_proto
from pagemesh.rpc.identity import require_role
from pagemesh.telemetry import span_names
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2

MAX_LOOKUP_BLOCKS = 16_384
"""Most hashes in one lookup, as kvstore.proto says."""

SPAN_NAMES = {"/pagemesh.v1.KvStore/Lookup": span_names.LOOKUP}
"""What a call is called in a trace, by its method."""

_ROLES = {
    types_pb2.WORKER_ROLE_PREFILL: MeshRole.PREFILL,
    types_pb2.WORKER_ROLE_DECODE: MeshRole.DECODE,
}


class KvStoreServicer(kvstore_pb2_grpc.KvStoreServicer):
    """Serves one catalog. Open streams end when `draining` is set."""

    def __init__(
        self, catalog: Catalog, heartbeat_interval: float, draining: asyncio.Event
    ) -> None:
        self._catalog = catalog
        self._heartbeat_interval = heartbeat_interval
        self._draining = draining

    async def Register(  # noqa: N802
        self,
        request: kvstore_pb2.RegisterRequest,
        context: grpc.aio.ServicerContext[
            kvstore_pb2.RegisterRequest, kvstore_pb2.RegisterResponse
        ],
    ) -> kvstore_pb2.RegisterResponse:
        """Announces a worker incarnation."""
        _check_kind(request.worker, context)
        revision, kept = await self._catalog.register(request.worker)
        return kvstore_pb2.RegisterResponse(
            revision=revision,
            heartbeat_interval_ms=max(1, round(self._heartbeat_interval * 1000)),
            kept=None if kept is None else digest_to_proto(kept),
        )

    async def Publish(  # noqa: N802
        self,
        request_iterator: AsyncIterator[kvstore_pb2.PublishRequest],
        context: grpc.aio.ServicerContext[kvstore_pb2.PublishRequest, kvstore_pb2.PublishResponse],
    ) -> AsyncGenerator[kvstore_pb2.PublishResponse, None]:
        """Takes in the events of one worker, which is dropped when the stream ends."""
        feed: Feed | None = None
        try:
            async with aclosing(until_set(self._draining, request_iterator)) as requests:
                async for request in requests:
                    event = worker_event(request)
                    if feed is None:
                        feed = await self._catalog.open_stream(request.worker_id, request.epoch)
                    _check_source(request, feed.stream)
                    if await self._catalog.publish(feed, request.sequence, event):
                        yield kvstore_pb2.PublishResponse(resync=True)
        finally:
            # A kvstore that stops must not tell its watchers that all workers left.
            if feed is not None and not self._draining.is_set():
                await self._catalog.close_stream(feed)

    async def Lookup(  # noqa: N802
        self,
        request: kvstore_pb2.LookupRequest,
        context: grpc.aio.ServicerContext[kvstore_pb2.LookupRequest, kvstore_pb2.LookupResponse],
    ) -> kvstore_pb2.LookupResponse:
        """Says how long a prefix each worker holds."""
        block_hashes = split_hashes(request.block_hashes, "block_hashes", MAX_LOOKUP_BLOCKS)
        holders = await self._catalog.lookup(block_hashes, request.model_fingerprint)
        trace.get_current_span().set_attributes(
            {span_names.KV_BLOCKS: len(block_hashes), span_names.HOLDERS: len(holders)}
        )
        return kvstore_pb2.LookupResponse(
            holders=[
                kvstore_pb2.PrefixHolder(worker_id=worker_id, block_count=num_blocks)
                for worker_id, num_blocks in holders.items()
            ]
        )

    async def Watch(  # noqa: N802
        self,
        request: kvstore_pb2.WatchRequest,
        context: grpc.aio.ServicerContext[kvstore_pb2.WatchRequest, kvstore_pb2.WatchResponse],
    ) -> AsyncGenerator[kvstore_pb2.WatchResponse, None]:
        """Tells membership and load from a revision on."""
        with self._catalog.known_peers.watching(request.watcher, context.peer()):
            async with (
                aclosing(self._catalog.follow(request.after_revision, request.log_id)) as changes,
                aclosing(until_set(self._draining, changes)) as changes_while_serving,
            ):
                async for change in changes_while_serving:
                    yield watch_response(change)

    async def ListWatchers(  # noqa: N802
        self,
        request: kvstore_pb2.ListWatchersRequest,
        context: grpc.aio.ServicerContext[
            kvstore_pb2.ListWatchersRequest, kvstore_pb2.ListWatchersResponse
        ],
    ) -> kvstore_pb2.ListWatchersResponse:
        """Says who watches this replica."""
        return kvstore_pb2.ListWatchersResponse(
            addresses=self._catalog.known_peers.watchers(),
            own_address=watcher_address(request.watcher, context.peer()),
        )

    async def Snapshot(  # noqa: N802
        self,
        request: kvstore_pb2.SnapshotRequest,
        context: grpc.aio.ServicerContext[
            kvstore_pb2.SnapshotRequest, kvstore_pb2.SnapshotResponse
        ],
    ) -> kvstore_pb2.SnapshotResponse:
        """Gives the whole state."""
        response = kvstore_pb2.SnapshotResponse(revision=self._catalog.revision)
        for member in self._catalog.members():
            worker_id = member.info.worker_id
            worker = response.workers.add(
                worker=member.info,
                load=member.load,
                cached_block_count=await self._catalog.count_blocks(worker_id),
            )
            if request.include_blocks:
                worker.block_hashes = b"".join(await self._catalog.blocks(worker_id))
        return response


def _check_kind(
    worker: types_pb2.WorkerInfo,
    context: grpc.aio.ServicerContext[kvstore_pb2.RegisterRequest, kvstore_pb2.RegisterResponse],
) -> None:
    """Refuse a worker whose certificate is one of the other kind."""
    role = _ROLES.get(worker.role)
    if role is not None:
        require_role(context.auth_context(), role, f"register as a {role} worker")


def _check_source(request: kvstore_pb2.PublishRequest, stream: PublishStream) -> None:
    if (request.worker_id, request.epoch) != (stream.worker_id, stream.epoch):
        raise InvalidRequestError(
            f"an event of worker {request.worker_id!r} with epoch {request.epoch} came on the stream "
            f"of worker {stream.worker_id!r} with epoch {stream.epoch}",
            param="worker_id",
        )
