"""A span for each lookup of a router whose request is recorded."""

from __future__ import annotations

from typing import Final

import grpc
from opentelemetry import trace
from opentelemetry.trace import Tracer

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE
from pagemesh.kvstore.servicer import KvStoreServicer
from pagemesh.rpc.spans import ServedSpans
from pagemesh.telemetry import span_names as names
from pagemesh.v1 import kvstore_pb2

_SERVED: Final = {"/pagemesh.v1.KvStore/Lookup": names.LOOKUP}


def served_spans(tracer: Tracer) -> ServedSpans:
    """What goes around the calls of a kvstore."""
    return ServedSpans(tracer, _SERVED)


class TracedServicer(KvStoreServicer):
    """Tells the present span what a lookup found."""

    async def Lookup(  # noqa: N802
        self,
        request: kvstore_pb2.LookupRequest,
        context: grpc.aio.ServicerContext[kvstore_pb2.LookupRequest, kvstore_pb2.LookupResponse],
    ) -> kvstore_pb2.LookupResponse:
        response = await super().Lookup(request, context)
        trace.get_current_span().set_attributes(
            {
                names.KV_BLOCKS: len(request.block_hashes) // BLOCK_HASH_SIZE,
                names.HOLDERS: len(response.holders),
            }
        )
        return response
