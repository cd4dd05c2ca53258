"""What steps need of a device besides its tensors: order, copies that nobody waits for, events, graphs.

All of a runner's work goes to one stream of the device, which does it in the order in which it was asked.
The host does not wait, except where it reads what was computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch


class Event(Protocol):
    """A place in the stream's work."""

    def query(self) -> bool:
        """Whether everything in front of it is done; does not wait."""
        ...


class Graph(Protocol):
    """Work that was captured once."""

    def replay(self) -> None:
        """Ask the device for all of it, with what is in its tensors then."""
        ...


class Accelerator(Protocol):
    """One device, asked by one thread at a time; its events may be waited for by others meanwhile."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Whatever this thread asks of the device meanwhile goes to the stream, without gradients."""
        ...

    def pin(self, num_bytes: int) -> torch.Tensor:
        """Host memory, uint8 [num_bytes], that the device can copy from and to by itself."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy between equal tensors, of which one is on the device and one is pinned; waits for nothing.

        Until an event behind the copy has passed, the host must not change what it copies from, nor read
        what it copies to. Within `computing`, like `record` and the replay of graphs.
        """
        ...

    def record(self) -> Event:
        """An event behind everything that was asked so far."""
        ...

    def wait(self, event: Event, timeout: float) -> None:
        """Wait for an event, for so many seconds, on any thread; other threads run meanwhile.

        Raises DeviceLostError when it has not passed by then, and what torch raises when the work failed.
        """
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """A graph of what `work` asks of the device, without doing it.

        The graph reads and writes the same tensors at each replay, so all that it is to read from and
        write to must live as long as it. Nothing else of `work` is repeated: it must not depend on
        anything on the host. What is allocated meanwhile is the graph's own, but all graphs share that
        memory: nothing that `work` makes may be used outside it. Raises what torch raises when the work
        cannot be captured.
        """
        ...

    def refusing_waits(self) -> AbstractContextManager[None]:
        """Meanwhile, work that makes the host wait for the device raises RuntimeError, where that can be
        noticed."""
        ...

    def beside(self) -> Accelerator:
        """The same device with a stream of its own, beside this one's; for any one thread."""
        ...

    def follow(self, event: Event) -> None:
        """Have what is asked from now on wait, on the device, for an event of another stream."""
        ...

    def adopt(self, memory: torch.Tensor) -> None:
        """Pin host memory that exists already, uint8 [N]; whoever has it calls `abandon` before it goes.

        Raises RuntimeError where the system does not let so much be pinned.
        """
        ...

    def abandon(self, memory: torch.Tensor) -> None:
        """Undo `adopt`; no copy from or to the memory is in flight."""
        ...

    def synchronize(self) -> None:
        """Wait until everything is done that anybody asked of the device. Not for steps."""
        ...
