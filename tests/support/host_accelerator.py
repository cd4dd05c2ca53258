"""The CPU as an `Accelerator` that finishes nothing before it is waited for, as far as anybody can see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from pagemesh.engine.accelerator import Event

GARBAGE = 0xCD


@dataclass(eq=False)
class HostEvent:
    """Passes when it is waited for or followed, or one behind it is."""

    owner: HostAccelerator
    has_passed: bool = False

    def query(self) -> bool:
        return self.has_passed


@dataclass
class Copy:
    """One copy between the device and pinned memory, in flight."""

    target: torch.Tensor
    pinned: torch.Tensor
    """The side of the copy that is the host's."""
    value: torch.Tensor
    """What the source was when the copy was asked for."""
    source: torch.Tensor
    arrived: torch.Tensor | None = None
    """What the target on the device will be for other streams."""


@dataclass
class HostGraph:
    owner: HostAccelerator
    work: Callable[[], None]

    def replay(self) -> None:
        self.owner.num_replays += 1
        self.work()


@dataclass
class HostAccelerator:
    """Computes at once what is asked of it. But copies to the host arrive when an event behind them is
    waited for, and memory that is copied from must be as it was until then.

    Beside another one, copies to the device arrive late as well: when somebody waits for an event behind
    them, or follows it; and what is copied from on the device must also be as it was until then."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_waits: int = 0
    num_copies: int = 0
    num_captured: int = 0
    num_replays: int = 0
    refuses_waits: bool = False
    is_lost: bool = False
    is_beside: bool = False
    _depth: int = 0
    followed: list[HostEvent] = field(default_factory=list)
    _in_flight: list[Copy | HostEvent] = field(default_factory=list)
    _pinned: list[torch.Tensor] = field(default_factory=list)
    # Shared with those beside it: several threads may wait, and each then does what others asked for.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    @contextmanager
    def computing(self) -> Iterator[None]:
        with torch.inference_mode():
            if self.is_beside and self._depth == 0:
                with self._lock:
                    _show_arrivals(self._in_flight)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self.is_beside and self._depth == 0:
                    with self._lock:
                        _hide_arrivals(self._in_flight)

    def pin(self, num_bytes: int) -> torch.Tensor:
        memory = torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)
        self._pinned.append(memory)
        return memory

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert target.shape == source.shape and target.dtype == source.dtype
        self.num_copies += 1
        if _is_within(self._pinned, target):
            assert not _is_within(self._pinned, source)
            _bytes(target).fill_(GARBAGE)
            self._in_flight.append(Copy(target, target, source.clone(), source))
        else:
            assert _is_within(self._pinned, source), (
                "a copy from memory that is not pinned makes the host wait"
            )
            if self.is_beside:
                # Its own copies are in order, and this one may need what the last ones brought.
                self._finish(self.record())
            target.copy_(source)
            self._in_flight.append(Copy(target, source, source.clone(), source))

    def record(self) -> HostEvent:
        self._check()
        event = HostEvent(self)
        self._in_flight.append(event)
        return event

    def wait(self, event: Event, timeout: float) -> None:
        self._check()
        if self.refuses_waits:
            raise RuntimeError("called a synchronizing operation")
        self.num_waits += 1
        self._finish(event)

    def capture(self, work: Callable[[], None]) -> HostGraph:
        self.num_captured += 1
        return HostGraph(self, work)

    @contextmanager
    def refusing_waits(self) -> Iterator[None]:
        self.refuses_waits = True
        try:
            yield
        finally:
            self.refuses_waits = False

    def beside(self) -> HostAccelerator:
        return HostAccelerator(self.device, is_beside=True, _pinned=self._pinned, _lock=self._lock)

    def follow(self, event: Event) -> None:
        assert isinstance(event, HostEvent)
        self.followed.append(event)
        self._in_flight.append(event)
        if not self.is_beside:
            # Work that is done at once needs what it follows at once.
            event.owner._finish(event)

    def adopt(self, memory: torch.Tensor) -> None:
        self._pinned.append(memory)

    def abandon(self, memory: torch.Tensor) -> None:
        self._pinned[:] = [each for each in self._pinned if each is not memory]

    def synchronize(self) -> None:
        event = self.record()
        self.wait(event, 0.0)

    @torch.inference_mode()
    def _finish(self, event: Event) -> None:
        """Do everything up to an event of this one's."""
        with self._lock:
            while not event.query():
                first = self._in_flight.pop(0)
                if isinstance(first, HostEvent):
                    if first.owner is not self:
                        first.owner._finish(first)
                    first.has_passed = True
                    continue
                is_device = first.pinned is first.target
                if is_device:
                    first.target.copy_(first.value)
                elif first.arrived is not None:
                    first.target.copy_(first.arrived)
                if not is_device or self.is_beside:
                    same = torch.equal(_bytes(first.source), _bytes(first.value))
                    assert same, "memory was changed while a copy from it was in flight"

    def _check(self) -> None:
        if self.is_lost:
            raise RuntimeError("device-side assert triggered\nlong advice")


def _hide_arrivals(in_flight: Sequence[Copy | HostEvent]) -> None:
    """What was copied to the device is there for those who follow this stream, and nobody else."""
    for copy in in_flight:
        if isinstance(copy, Copy) and copy.pinned is not copy.target and copy.arrived is None:
            copy.arrived = copy.target.clone()
            _bytes(copy.target).fill_(GARBAGE)


def _show_arrivals(in_flight: Sequence[Copy | HostEvent]) -> None:
    """What was copied to the device is there for the same stream."""
    for copy in in_flight:
        if isinstance(copy, Copy) and copy.arrived is not None:
            copy.target.copy_(copy.arrived)
            copy.arrived = None


def _is_within(memories: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage().data_ptr()
    return any(each.untyped_storage().data_ptr() == storage for each in memories)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dtype != torch.uint8 else tensor
