"""What a kvstore says of itself in `Process.Describe`."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pagemesh.config.connections import without_password
from pagemesh.errors import PagemeshError
from pagemesh.kvstore.catalog import Catalog
from pagemesh.kvstore.known_peers import KnownPeers, RemoteMember
from pagemesh.kvstore.members import Member
from pagemesh.messages import digest_to_proto
from pagemesh.v1 import process_pb2

_INDEX_PATIENCE = 1.0
"""Seconds that the index has for what it is asked: a Redis that hangs must not keep the rest from being told."""


class KvStoreDescriber:
    """Reads what the kvstore knows at that moment. Belongs to one event loop."""

    def __init__(self, catalog: Catalog, index: str) -> None:
        """`index` is what --index says."""
        self._catalog = catalog
        self._index = without_password(index)

    async def describe(self, response: process_pb2.DescribeResponse) -> None:
        """Fill in what the kvstore knows."""
        described = response.kvstore
        described.index = self._index
        members = self._catalog.members()
        described.members.extend(map(_describe_member, members))
        try:
            async with asyncio.timeout(_INDEX_PATIENCE):
                await self._describe_index(described)
        except TimeoutError:
            described.index_error = f"no answer within {_INDEX_PATIENCE:g} s"
        except PagemeshError as error:
            described.index_error = error.message
        _describe_known_peers(self._catalog.known_peers, described)

    async def _describe_index(self, described: process_pb2.KvStoreDescription) -> None:
        for member in described.members:
            believed = await self._catalog.believed(member.worker.worker_id)
            if believed is not None:
                member.believed.CopyFrom(digest_to_proto(believed))


def _describe_member(member: Member | RemoteMember) -> process_pb2.MemberDescription:
    described = process_pb2.MemberDescription(worker=member.info, load=member.load)
    if isinstance(member, Member):
        described.publishes_here = True
        if member.stream is not None:
            described.differs = member.stream.differs
            described.difference_count = member.stream.num_differences
    return described


def _describe_known_peers(
    known_peers: KnownPeers, described: process_pb2.KvStoreDescription
) -> None:
    described.watchers.extend(known_peers.watchers())
    for refused in known_peers.refused():
        described.refused.add(worker=refused.info, reason=refused.reason, message=refused.message)
    now = known_peers.clock()
    for departed in known_peers.departed():
        described.departed.add(worker=departed.info, age=timedelta(seconds=now - departed.at))
