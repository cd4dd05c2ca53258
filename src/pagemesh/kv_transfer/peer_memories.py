"""KV memory of other workers on this host, mapped while it may be wanted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from pagemesh.core.kv import KvLayout
from pagemesh.kv_memory.memory import MemoryName
from pagemesh.kv_memory.peer import PeerMemory, unreachable

IDLE_SECONDS: Final = 60.0
"""Without a stream, after which memory is let go of. Reading a page for the first time costs twice as much
as copying it."""

Incarnation = tuple[str, int]
"""worker_id and epoch."""


@dataclass(slots=True)
class _Mapped:
    memory: PeerMemory | None = None
    owner: int | None = None
    """Descriptor that tells when the owner's process ends; None when nothing does."""
    num_streams: int = 0
    timer: asyncio.TimerHandle | None = None


class PeerMemories:
    """Maps each memory once, for all streams from its owner. Belongs to one event loop.

    Memory stays mapped between streams, but never behind the end of its owner, of which it would be all
    that is left: where that cannot be noticed, it is let go of with the last stream.
    """

    def __init__(self, layout: KvLayout) -> None:
        self._layout = layout
        self._mapped: dict[Incarnation, _Mapped] = {}

    @contextmanager
    def use(self, owner: Incarnation) -> Iterator[Callable[[MemoryName], PeerMemory]]:
        """For one stream, as long as it may copy: gives what maps the memory when its name is known.

        That raises UnavailableError when the memory is out of reach.
        """
        mapped = self._mapped.setdefault(owner, _Mapped())
        mapped.num_streams += 1
        if mapped.timer is not None:
            mapped.timer.cancel()
        try:
            yield partial(self._open, owner, mapped)
        finally:
            mapped.num_streams -= 1
            if not mapped.num_streams:
                self._idle(owner, mapped)

    def close(self) -> None:
        """Let go of everything; no stream may be left. Idempotent."""
        for owner in list(self._mapped):
            self._drop(owner)

    def _open(self, owner: Incarnation, mapped: _Mapped, name: MemoryName) -> PeerMemory:
        if mapped.memory is None:
            # Before the memory is found there: a process that ends meanwhile is noticed.
            watch = _watch(name.process_id)
            try:
                mapped.memory = PeerMemory(name, self._layout)
            except BaseException:
                if watch is not None:
                    os.close(watch)
                raise
            if watch is not None:
                mapped.owner = watch
                asyncio.get_running_loop().add_reader(watch, self._on_end, owner, mapped)
        elif mapped.memory.name != name:
            raise unreachable("its owner named other memory before")
        return mapped.memory

    def _idle(self, owner: Incarnation, mapped: _Mapped) -> None:
        if mapped.owner is None:
            self._drop(owner)
        else:
            loop = asyncio.get_running_loop()
            mapped.timer = loop.call_later(IDLE_SECONDS, self._drop, owner)

    def _on_end(self, owner: Incarnation, mapped: _Mapped) -> None:
        """The owner's process has ended; so will the streams from it, if there are any."""
        _forget(mapped)
        if not mapped.num_streams:
            self._drop(owner)

    def _drop(self, owner: Incarnation) -> None:
        mapped = self._mapped.pop(owner)
        _forget(mapped)
        if mapped.timer is not None:
            mapped.timer.cancel()
        if mapped.memory is not None:
            mapped.memory.close()


def _watch(process_id: int) -> int | None:
    """A descriptor that is readable when a process has ended; None where the system has none."""
    # A number that no process can have is an OverflowError.
    with suppress(OSError, OverflowError, AttributeError):
        return os.pidfd_open(process_id)
    return None


def _forget(mapped: _Mapped) -> None:
    """Watch the owner no longer."""
    if mapped.owner is not None:
        asyncio.get_running_loop().remove_reader(mapped.owner)
        os.close(mapped.owner)
        mapped.owner = None
