"""What watchers are told, as messages."""

from __future__ import annotations

from pagemesh.kvstore.catalog import Resync, Synced
from pagemesh.kvstore.changes import Change, Joined, Left, Loaded
from pagemesh.v1 import kvstore_pb2


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
