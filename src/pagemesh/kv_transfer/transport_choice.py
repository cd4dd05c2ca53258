"""Chooses the transport of each KV stream: in messages, or out of memory that both workers can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import structlog

from pagemesh.core.kv import KvAccess, KvLayout
from pagemesh.kv_memory.memory import KvMemory, MemoryName
from pagemesh.kv_memory.peer import PeerMemory, unreachable
from pagemesh.kv_memory.staged import StagedKv
from pagemesh.kv_transfer.peer_memories import Incarnation, PeerMemories
from pagemesh.kv_transfer.transports import (
    PayloadReceiving,
    PayloadSending,
    ReceivingTransport,
    SendingTransport,
    device_memory_name,
    device_memory_receiving,
    device_memory_sending,
    host_memory_receiving,
    host_memory_sending,
    memory_name,
)
from pagemesh.rpc.channels import host_identity
from pagemesh.v1 import kv_transfer_pb2, types_pb2

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MAX_UNREACHABLE: Final = 1024
"""Incarnations remembered; the one that was noted first goes first."""

ChooseTransport = Callable[[kv_transfer_pb2.KvHeader], ReceivingTransport]


class KvTransports:
    """The transports of one worker's KV, to and from others. It belongs to one event loop, they do not.

    A worker whose memory turned out to be out of reach is not asked for it again in that incarnation.
    """

    def __init__(self, kv: KvAccess, layout: KvLayout, *, share: bool) -> None:
        """Without `share` all KV travels in messages."""
        self._payload = PayloadSending(kv)
        self._kv = kv
        self._identity: kv_transfer_pb2.HostIdentity | None = None
        self._sending: SendingTransport = self._payload
        if share and isinstance(kv, KvMemory) and (name := kv.share()) is not None:
            self._identity = host_identity()
            self._sending = host_memory_sending(kv, name)
        elif share and isinstance(kv, StagedKv) and kv.name is not None:
            self._identity = host_identity(on_device=True)
            self._sending = device_memory_sending(kv, kv.name)
        self._memories = PeerMemories(layout)
        self._unreachable: dict[Incarnation, None] = {}

    def sending_to(self, caller: kv_transfer_pb2.HostIdentity) -> SendingTransport:
        """For a stream whose caller says that it can read the memory of this host; an empty one cannot."""
        return self._sending if caller == self._identity else self._payload

    def identity_for(self, sender: types_pb2.PeerWorker) -> kv_transfer_pb2.HostIdentity | None:
        """What a sender is told of this host; None when its KV has to travel in messages."""
        return None if _key(sender) in self._unreachable else self._identity

    @property
    def shares_memory(self) -> bool:
        """Whether workers of the same user on this host may read the KV here."""
        return self._identity is not None

    def unreadable(self) -> set[str]:
        """Ids of the workers on this host whose memory is out of reach."""
        return {worker_id for worker_id, _ in self._unreachable}

    def note_unreachable(self, sender: types_pb2.PeerWorker, why: str) -> None:
        """The sender's memory is out of reach."""
        if len(self._unreachable) >= _MAX_UNREACHABLE:
            del self._unreachable[next(iter(self._unreachable))]
        self._unreachable[_key(sender)] = None
        log.warning(
            "KV from a worker on this host travels in messages",
            peer=sender.worker_id,
            error=why,
        )

    @contextmanager
    def stream(self, sender: types_pb2.PeerWorker) -> Iterator[ChooseTransport]:
        """For one stream from a sender, as long as it may copy: gives what chooses by the stream's header.

        That raises UnavailableError when the sender's memory is out of reach. So does a device's, when the
        first blocks are to be copied: only then is it opened.
        """
        is_asked_for = self.identity_for(sender) is not None
        with self._memories.use(_key(sender)) as open_memory:
            yield partial(self._receiving_from, open_memory, is_asked_for)

    def close(self) -> None:
        """Let go of what is mapped; no stream may be left. Idempotent."""
        self._memories.close()

    def _receiving_from(
        self,
        open_memory: Callable[[MemoryName], PeerMemory],
        is_asked_for: bool,
        header: kv_transfer_pb2.KvHeader,
    ) -> ReceivingTransport:
        match header.WhichOneof("place"):
            case None:
                return PayloadReceiving(self._kv)
            # Nobody else makes this worker open what it names.
            case _ if not is_asked_for:
                raise unreachable("this worker has not said that it can read it")
            case "memory" if isinstance(self._kv, KvMemory):
                return host_memory_receiving(self._kv, open_memory(memory_name(header)))
            case "device_memory" if isinstance(self._kv, StagedKv):
                return device_memory_receiving(self._kv, device_memory_name(header))
            case place:
                raise unreachable(f"a {place} is not like this worker's own")


def _key(sender: types_pb2.PeerWorker) -> Incarnation:
    return sender.worker_id, sender.epoch
