"""Which workers on this host can read each other's KV memory, and what is mapped of it at the moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from pagemesh.engine.interface import BlockLayout, KvAccess
from pagemesh.engine.kv_memory import KvMemory
from pagemesh.engine.peer_memory import PeerMemory, unreachable
from pagemesh.kvship.host_memory import HostMemoryReceiving, HostMemorySending, memory_name
from pagemesh.kvship.ways import PayloadReceiving, PayloadSending, ReceivingWay, SendingWay
from pagemesh.v1 import kv_transfer_pb2, types_pb2

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MAX_UNREACHABLE: Final = 1024
"""Incarnations remembered; the one that was noted first goes first."""

_Incarnation = tuple[str, int]
"""worker_id and epoch."""


def host_identity() -> kv_transfer_pb2.HostIdentity | None:
    """Of this process; None on a system where no process reads another's memory this way."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return kv_transfer_pb2.HostIdentity(
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
            pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
            user_id=os.geteuid(),
        )
    except OSError:
        return None


@dataclass(slots=True)
class _Mapped:
    memory: PeerMemory | None = None
    num_streams: int = 0


class HostMemory:
    """The ways of one worker's KV, to and from others. Belongs to one event loop, but for the ways.

    What of another worker's memory is mapped, is mapped as long as streams from it are open. A worker
    whose memory turned out to be out of reach is not asked for it again in that incarnation.
    """

    def __init__(self, kv: KvAccess, layout: BlockLayout, *, share: bool = True) -> None:
        """Without `share` all KV travels in messages."""
        self._payload = PayloadSending(kv)
        self._kv = kv
        self._layout = layout
        self._identity: kv_transfer_pb2.HostIdentity | None = None
        self._sending: SendingWay = self._payload
        if share and isinstance(kv, KvMemory) and (name := kv.share()) is not None:
            self._identity = host_identity()
            self._sending = HostMemorySending(kv, name)
        self._mapped: dict[_Incarnation, _Mapped] = {}
        self._unreachable: dict[_Incarnation, None] = {}

    def sending_way(self, caller: kv_transfer_pb2.HostIdentity) -> SendingWay:
        """For a stream whose caller says that it can read the memory of this host; an empty one cannot."""
        return self._sending if caller == self._identity else self._payload

    def identity_for(self, sender: types_pb2.PeerWorker) -> kv_transfer_pb2.HostIdentity | None:
        """What a sender is told of this host; None when its KV has to travel in messages."""
        return None if _key(sender) in self._unreachable else self._identity

    def note_unreachable(self, sender: types_pb2.PeerWorker) -> None:
        """The sender's memory could not be mapped."""
        if len(self._unreachable) >= _MAX_UNREACHABLE:
            del self._unreachable[next(iter(self._unreachable))]
        self._unreachable[_key(sender)] = None
        log.warning("KV from a worker on this host travels in messages", peer=sender.worker_id)

    @contextmanager
    def stream(self, sender: types_pb2.PeerWorker) -> Iterator[SenderMemory]:
        """For one stream from a sender, as long as it may copy."""
        key = _key(sender)
        mapped = self._mapped.setdefault(key, _Mapped())
        mapped.num_streams += 1
        try:
            yield SenderMemory(self._kv, self._layout, mapped)
        finally:
            mapped.num_streams -= 1
            if not mapped.num_streams:
                del self._mapped[key]
                if mapped.memory is not None:
                    mapped.memory.close()


class SenderMemory:
    """Chooses the way of one stream when its header is there."""

    def __init__(self, kv: KvAccess, layout: BlockLayout, mapped: _Mapped) -> None:
        self._kv = kv
        self._layout = layout
        self._mapped = mapped

    def receiving_way(self, header: kv_transfer_pb2.KvHeader) -> ReceivingWay:
        """The way that a header announces; UnavailableError when the sender's memory is out of reach."""
        if not header.HasField("memory"):
            return PayloadReceiving(self._kv, self._layout)
        name = memory_name(header)
        if not isinstance(self._kv, KvMemory):
            raise unreachable("this worker's KV is no memory of the host")
        if self._mapped.memory is None:
            self._mapped.memory = PeerMemory(name, self._layout)
        if self._mapped.memory.name != name:
            raise unreachable("it is other memory than before")
        return HostMemoryReceiving(self._kv, self._mapped.memory)


def _key(sender: types_pb2.PeerWorker) -> _Incarnation:
    return sender.worker_id, sender.epoch
