"""Messages of the KvStore service: what workers publish, checked and translated, and what watchers are told."""

from __future__ import annotations

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE, CacheDigest
from pagemesh.errors import InvalidRequestError
from pagemesh.kvstore.catalog import Resync, Synced
from pagemesh.kvstore.changes import (
    Beat,
    Change,
    Cleared,
    Digested,
    Joined,
    Left,
    Loaded,
    Removed,
    Resumed,
    Stored,
    WorkerEvent,
)
from pagemesh.messages import digest_from_proto
from pagemesh.v1 import kvstore_pb2, types_pb2

MAX_EVENT_BLOCKS = 16_384
"""Most hashes in one event, as kvstore.proto says."""

MAX_LOAD_BYTES = 262_144
"""Of one report of a load, which every router is sent."""


def worker_event(request: kvstore_pb2.PublishRequest) -> WorkerEvent:
    """What a worker tells; InvalidRequestError for what is none of it, or too much."""
    if request.sequence == 0:
        raise InvalidRequestError("sequence is 0, but events are numbered from 1", param="sequence")
    match request.WhichOneof("event"):
        case "stored":
            return Stored(
                split_hashes(request.stored.block_hashes, "stored.block_hashes", MAX_EVENT_BLOCKS)
            )
        case "removed":
            return Removed(
                split_hashes(request.removed.block_hashes, "removed.block_hashes", MAX_EVENT_BLOCKS)
            )
        case "cleared":
            return Cleared()
        case "load":
            return Beat(_load(request.load))
        case "digest":
            return Digested(_digest(request.digest, "digest"))
        case "resumed":
            return Resumed(_digest(request.resumed, "resumed"))
        case _:
            raise InvalidRequestError("event is not set", param="event")


def _load(message: types_pb2.WorkerLoad) -> types_pb2.WorkerLoad:
    if message.ByteSize() > MAX_LOAD_BYTES:
        raise InvalidRequestError(
            f"load has {message.ByteSize()} bytes, but {MAX_LOAD_BYTES} are the most", param="load"
        )
    return message


def _digest(message: kvstore_pb2.CacheDigest, param: str) -> CacheDigest:
    if len(message.names_xor) != BLOCK_HASH_SIZE:
        raise InvalidRequestError(
            f"{param}.names_xor has {len(message.names_xor)} bytes, but must have {BLOCK_HASH_SIZE}",
            param=f"{param}.names_xor",
        )
    return digest_from_proto(message)


def split_hashes(packed: bytes, param: str, max_blocks: int) -> list[bytes]:
    """Concatenated hashes, each by itself. They are counted first: to split millions stops everybody.

    InvalidRequestError for more than `max_blocks`, or a part of one.
    """
    num_blocks = len(packed) // BLOCK_HASH_SIZE
    if num_blocks > max_blocks:
        raise InvalidRequestError(
            f"{param} has {num_blocks} hashes, but {max_blocks} are the most", param=param
        )
    if len(packed) % BLOCK_HASH_SIZE:
        raise InvalidRequestError(
            f"{param} has {len(packed)} bytes, but must have a multiple of {BLOCK_HASH_SIZE}",
            param=param,
        )
    return [
        packed[start : start + BLOCK_HASH_SIZE] for start in range(0, len(packed), BLOCK_HASH_SIZE)
    ]


def watch_response(change: Change | Resync | Synced) -> kvstore_pb2.WatchResponse:
    """The message for one of them."""
    match change:
        case Resync():
            # No revision: a watch that is broken off before Synced starts anew.
            return kvstore_pb2.WatchResponse(resync=kvstore_pb2.Resync())
        case Synced(revision, log_id):
            synced = kvstore_pb2.Synced(log_id=log_id)
            return kvstore_pb2.WatchResponse(revision=revision, synced=synced)
        case Change(revision, event):
            return _changed(revision, event)


def _changed(revision: int, event: Joined | Left | Loaded) -> kvstore_pb2.WatchResponse:
    match event:
        case Joined(info):
            return kvstore_pb2.WatchResponse(revision=revision, joined=info)
        case Left(worker_id):
            return kvstore_pb2.WatchResponse(revision=revision, left=worker_id)
        case Loaded(worker_id, load):
            report = kvstore_pb2.LoadReport(worker_id=worker_id, load=load)
            return kvstore_pb2.WatchResponse(revision=revision, load=report)
