"""KV pools of other engines' processes on this host: opened when first read, closed when their owner ends."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.cuda.kv_pool import WORD_BYTES, KvPool
from pagemesh.kv_memory.peer import unreachable
from pagemesh.kv_memory.staged import DeviceMemoryName


def name_pool(pool: KvPool, sharing: MemorySharing) -> DeviceMemoryName | None:
    """Let other processes open a pool of this one, which stays until this one ends; None if they cannot."""
    exported = sharing.export(pool.planes)
    if exported is None:
        return None
    return DeviceMemoryName(os.getpid(), exported.handle, exported.offset, pool.num_blocks)


@dataclass(eq=False)
class _Peer:
    name: DeviceMemoryName
    opened: OpenedMemory
    planes: torch.Tensor
    owner: int
    """Descriptor of the owner's process, until `has_ended`."""
    wake: int | None
    """Descriptor of a pipe; closed to end the wait for the owner's end."""
    num_users: int = 0
    has_ended: bool = False


class PeerPools:
    """Of engines with the same layout, one of each process. Any thread.

    Nothing in them can be trusted before a checksum said so: their owners write as they like.
    """

    def __init__(self, layout: KvLayout, sharing: MemorySharing) -> None:
        self._layout = layout
        self._sharing = sharing
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}  # by the owner's process
        self._watchers: list[threading.Thread] = []

    @contextmanager
    def use(self, name: DeviceMemoryName) -> Iterator[torch.Tensor]:
        """The pool, as `KvPool.planes`: stays open meanwhile, whatever becomes of its owner.

        Behind it nothing that was asked of the device may read it; whoever leaves it by an exception need
        not know that, so then it stays open until this process ends. UnavailableError when it is out of
        reach, its owner has ended, or named another one before.
        """
        with self._lock:
            peer = self._peers.get(name.process_id)
            if peer is None:
                peer = self._peers[name.process_id] = self._open(name)
            elif peer.name != name:
                raise unreachable(f"process {name.process_id} named other memory before")
            elif _has_ended(peer.owner):
                # Nobody has heard of it yet, but what is left of the memory may be anybody's.
                raise unreachable(f"process {name.process_id} has ended")
            peer.num_users += 1
        yield peer.planes
        with self._lock:
            peer.num_users -= 1
            self._close_unused(peer)

    def close(self) -> None:
        """Close all; nobody uses any. Idempotent."""
        with self._lock:
            for peer in self._peers.values():
                _wake(peer)
            watchers = list(self._watchers)
        # Those too whose owner has just ended: a thread that still gives tensors back when the interpreter
        # ends would take the process down.
        for watcher in watchers:
            watcher.join()

    def _open(self, name: DeviceMemoryName) -> _Peer:
        num_bytes = name.num_blocks * self._layout.num_bytes
        if num_bytes <= 0 or name.offset % WORD_BYTES:
            raise unreachable(f"it has {name.num_blocks} blocks, from byte {name.offset} on")
        try:
            # Before the memory is opened: a process that ends meanwhile is noticed.
            owner = os.pidfd_open(name.process_id)
        except (OSError, OverflowError, AttributeError) as error:
            raise unreachable(f"process {name.process_id} cannot be watched: {error}") from error
        try:
            if _has_ended(owner):
                raise unreachable(f"process {name.process_id} has ended")
            opened = self._sharing.open(name, num_bytes)
        except BaseException:
            os.close(owner)
            raise
        shape = (2 * self._layout.num_layers, name.num_blocks, -1)
        stopped, wake = os.pipe()
        planes = opened.memory.view(torch.int64).view(shape)
        peer = _Peer(name, opened, planes, owner, wake)
        watcher = threading.Thread(
            target=self._watch, args=(peer, stopped), name="kv-peer", daemon=True
        )
        self._watchers = [each for each in self._watchers if each.is_alive()]
        self._watchers.append(watcher)
        watcher.start()
        return peer

    def _watch(self, peer: _Peer, stopped: int) -> None:
        """Wait until the owner has ended, or `close` was called."""
        poll = select.poll()
        poll.register(peer.owner, select.POLLIN)
        poll.register(stopped, select.POLLHUP)
        poll.poll()
        with self._lock:
            del self._peers[peer.name.process_id]
            _wake(peer)
            peer.has_ended = True
            self._close_unused(peer)
        os.close(peer.owner)
        os.close(stopped)

    def _close_unused(self, peer: _Peer) -> None:
        if peer.has_ended and not peer.num_users:
            peer.opened.close()


def _wake(peer: _Peer) -> None:
    if peer.wake is not None:
        os.close(peer.wake)
        peer.wake = None


def _has_ended(process: int) -> bool:
    """Whether the process of a descriptor computes nothing any more, though it may not be reaped yet."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


class Exported(NamedTuple):
    """Where memory is found by other processes, see `DeviceMemoryName`."""

    handle: bytes
    offset: int


class OpenedMemory(Protocol):
    """Memory of another process."""

    @property
    def memory(self) -> torch.Tensor:
        """uint8 [N], on the device of whoever opened it; until `close`."""
        ...

    def close(self) -> None:
        """Let go of it; nothing that was asked of the device uses it any more. Idempotent."""
        ...


class MemorySharing(Protocol):
    """One device's memory, and what it can reach of others'. Any thread."""

    def export(self, memory: torch.Tensor) -> Exported | None:
        """Let other processes open it; None when they cannot. It must not be freed any more then."""
        ...

    def open(self, name: DeviceMemoryName, num_bytes: int) -> OpenedMemory:
        """So many bytes of another process's memory, from the offset on.

        Raises UnavailableError when the device does not reach it, or there is not so much.
        """
        ...
