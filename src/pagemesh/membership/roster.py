"""The workers that a router knows: the state behind `Directory`, without its connection; their classes of arithmetic."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from pagemesh.messages import describe_arithmetic
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)


class MemberChange(enum.Enum):
    """What happened to a worker."""

    JOINED = "joined"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker at one moment. The messages in it are shared and must not be changed."""

    info: types_pb2.WorkerInfo
    """The incarnation, as it registered."""

    load: types_pb2.WorkerLoad
    """Its last reported load; all zero before the first report."""

    live: bool
    """Whether the kvstore confirms it at present; False while it is only remembered."""

    reported_at: float | None = field(default=None, compare=False)
    """When the report came, in seconds of the monotonic clock; None before the first."""

    # Copied out of the message, which takes ten times as long to read: routers do for every request.
    worker_id: str = field(init=False)
    """Stable name, unique in the mesh."""

    role: types_pb2.WorkerRole.ValueType = field(init=False)
    """What the worker serves."""

    def __post_init__(self) -> None:
        """Fills in what is copied."""
        object.__setattr__(self, "worker_id", self.info.worker_id)
        object.__setattr__(self, "role", self.info.role)

    @property
    def address(self) -> str:
        """host:port of its gRPC server."""
        return self.info.address


MemberListener = Callable[[MemberChange, WorkerState], None]


class Roster:
    """Known workers by id; confirmed by the kvstore, or remembered from before it went away.

    Not thread-safe: belongs to one event loop. Listeners are called at once, on that loop; a
    replaced incarnation is reported as LEFT and then JOINED.
    """

    def __init__(self) -> None:
        self._workers: dict[str, WorkerState] = {}
        self._listeners: list[MemberListener] = []
        self._listed: tuple[WorkerState, ...] | None = None

    def workers(self) -> tuple[WorkerState, ...]:
        """All known workers, in order of joining; the same object until one of them changes."""
        if self._listed is None:
            self._listed = tuple(self._workers.values())
        return self._listed

    def subscribe(self, listener: MemberListener) -> None:
        """Have `listener` called for every worker that is known now (JOINED) and every later change."""
        self._listeners.append(listener)
        for worker in self.workers():
            self._call(listener, MemberChange.JOINED, worker)

    def join(self, info: types_pb2.WorkerInfo) -> None:
        """The kvstore named a member: new, a newer incarnation, or one that was already known."""
        known = self._workers.get(info.worker_id)
        if known is not None and known.info == info:
            self._put(replace(known, live=True))
            return
        self.leave(info.worker_id)
        worker = WorkerState(info, types_pb2.WorkerLoad(), live=True)
        self._put(worker)
        self._notify(MemberChange.JOINED, worker)

    def leave(self, worker_id: str) -> None:
        """A worker is no longer a member; unknown ones are ignored."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            self._listed = None
            self._notify(MemberChange.LEFT, worker)

    def report_load(self, worker_id: str, load: types_pb2.WorkerLoad) -> None:
        """A worker reported its load; unknown ones are ignored."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            self._put(replace(worker, load=load, reported_at=time.monotonic()))

    def doubt_all(self) -> None:
        """Nothing is confirmed any more: the kvstore is away, or starts over."""
        self._set_all_live(False)

    def confirm_all(self) -> None:
        """What is known is what the kvstore knows."""
        self._set_all_live(True)

    def forget_doubtful(self) -> None:
        """Drop every worker that was not confirmed since `doubt_all`."""
        for worker in self.workers():
            if not worker.live:
                _log.info("worker_not_seen_again", worker_id=worker.worker_id)
                self.leave(worker.worker_id)

    def _set_all_live(self, live: bool) -> None:
        for worker in self.workers():
            self._put(replace(worker, live=live))

    def _put(self, worker: WorkerState) -> None:
        self._workers[worker.worker_id] = worker
        self._listed = None

    def _notify(self, change: MemberChange, worker: WorkerState) -> None:
        for listener in self._listeners:
            self._call(listener, change, worker)

    def _call(self, listener: MemberListener, change: MemberChange, worker: WorkerState) -> None:
        try:
            listener(change, worker)
        except Exception:
            # Foreign code: one listener's bug must not stop the others, nor the watch.
            _log.exception("listener_failed", change=change.value, worker_id=worker.worker_id)


_MOST_NAMES: Final = 6
"""Of workers of a class that the sentence lists; of more it gives the number."""


def arithmetic_classes(workers: Iterable[types_pb2.WorkerInfo]) -> dict[str, list[str]]:
    """Ids of the workers of each class, in order; those that do not say are a class of their own."""
    classes: dict[str, list[str]] = {}
    for info in sorted(workers, key=lambda each: (each.arithmetic, each.worker_id)):
        classes.setdefault(info.arithmetic, []).append(info.worker_id)
    return classes


def describe_mixture(model: str, classes: Mapping[str, Sequence[str]]) -> str | None:
    """What is so, and what it leads to, without a full stop; None where all workers of the model compute alike."""
    if len(classes) < 2:
        return None
    kinds = [f"{describe_arithmetic(name)} ({_some(ids)})" for name, ids in classes.items()]
    return (
        f"Workers of {model} compute with {len(kinds)} kinds of arithmetic: {', '.join(kinds[:-1])} and {kinds[-1]}."
        " KV does not travel from one kind to the other, and an answer that has to move there may go on with other"
        " tokens"
    )


def _some(worker_ids: Sequence[str]) -> str:
    if len(worker_ids) > _MOST_NAMES:
        num_more = len(worker_ids) - _MOST_NAMES + 1
        worker_ids = [*worker_ids[: _MOST_NAMES - 1], f"{num_more} more"]
    return ", ".join(worker_ids)
