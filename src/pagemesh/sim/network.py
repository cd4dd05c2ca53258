"""Links between workers: every worker has a port, and the streams that use it at a time share it evenly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagemesh.sim.clock import Clock
from pagemesh.sim.model import LinkModel


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way."""

    sender: str
    receiver: str
    num_bytes_left: float
    on_end: Callable[[], object]
    rate: float = 0.0
    updated_at: float = 0.0
    version: int = 0


class Network:
    """All streams of KV.

    A stream gets the lesser of its sender's and its receiver's share; what one of them leaves unused is not
    given to others, which makes the network a little slower than one that divides its ports as well as can be.
    """

    def __init__(self, clock: Clock, model: LinkModel) -> None:
        self._clock = clock
        self._model = model
        # Flows in order of their beginning, so that equal runs are equal.
        self._outgoing: dict[str, dict[Flow, None]] = {}
        self._incoming: dict[str, dict[Flow, None]] = {}

    def send(
        self, sender: str, receiver: str, num_bytes: float, on_end: Callable[[], object]
    ) -> Flow:
        """Begin to send; `on_end` is called when all is there, unless one of the two is lost."""
        flow = Flow(sender, receiver, num_bytes, on_end, updated_at=self._clock.now)
        self._outgoing.setdefault(sender, {})[flow] = None
        self._incoming.setdefault(receiver, {})[flow] = None
        self._share(flow)
        return flow

    def cancel(self, flow: Flow) -> None:
        """Nobody waits for it any more; one that has ended is ignored."""
        if flow in self._outgoing.get(flow.sender, {}):
            self._remove(flow)

    def lose(self, worker_id: str) -> None:
        """A worker is gone, and with it all its streams."""
        for flow in (*self._outgoing.get(worker_id, ()), *self._incoming.get(worker_id, ())):
            self._remove(flow)

    @property
    def bytes_per_second(self) -> float:
        """Of a port, in each direction."""
        return self._model.bytes_per_second

    @property
    def latency_seconds(self) -> float:
        """From a call to its first message."""
        return self._model.latency_seconds

    def _remove(self, flow: Flow) -> None:
        flow.version += 1
        del self._outgoing[flow.sender][flow]
        del self._incoming[flow.receiver][flow]
        self._share(flow)

    def _share(self, changed: Flow) -> None:
        """Divide the ports of a flow that came or went anew."""
        now = self._clock.now
        outgoing, incoming = self._outgoing[changed.sender], self._incoming[changed.receiver]
        for flow in {**outgoing, **incoming}:
            flow.num_bytes_left -= flow.rate * (now - flow.updated_at)
            flow.updated_at = now
            sharers = max(len(self._outgoing[flow.sender]), len(self._incoming[flow.receiver]))
            flow.rate = self._model.bytes_per_second / sharers
            flow.version += 1
            seconds = max(0.0, flow.num_bytes_left) / flow.rate
            self._clock.after(seconds, self._end_of(flow, flow.version))

    def _end_of(self, flow: Flow, version: int) -> Callable[[], object]:
        def end() -> None:
            if flow.version == version:
                self._remove(flow)
                flow.on_end()

        return end
