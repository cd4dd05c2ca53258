"""From the engine to the event loop: at most one hop per step, then each event to whoever waits for it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable

import structlog

from pagemesh.core.engine import Engine, StepListener, StepOutput
from pagemesh.core.kv import KvExport, KvGrant, KvProgress
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.errors import PagemeshError
from pagemesh.worker.engine_metrics import EngineMetrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RequestEvent = KvGrant | KvExport | KvProgress | RequestOutput
RequestListener = Callable[[RequestEvent], None]


class StepDispatcher:
    """Submits requests to an engine and routes what its steps make known.

    Belongs to the event loop on which it was started; listeners are called on that loop, must not wait,
    and for one step get grants, then exports, progress and outputs. A request's listener is forgotten after
    its last output. Grants that nobody waits for any more, or that a listener fails to take, are given back at
    once.
    """

    def __init__(self, engine: Engine, metrics: EngineMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._listeners: dict[str, RequestListener] = {}
        self._step_listeners: list[StepListener] = []
        self._numbers = itertools.count(1)
        self._load = engine.load()

    @property
    def load(self) -> EngineLoad:
        """The engine's load after the last step."""
        return self._load

    def start(self) -> None:
        """Start the engine."""
        self._engine.start(self._on_step)

    def subscribe(self, listener: StepListener) -> None:
        """Have `listener` called on the loop once per step, before the step's requests are."""
        self._step_listeners.append(listener)

    def unique_id(self, request_id: str) -> str:
        """A name for the engine: clients may use one request id several times at once."""
        return f"{request_id}#{next(self._numbers)}"

    def submit(self, request: EngineRequest, listener: RequestListener) -> None:
        """Queue a request and route its events to `listener`; UnavailableError if the engine stopped."""
        self._engine.submit(request)
        # Not too late: events reach this loop only after the present callback.
        self._listeners[request.request_id] = listener
        self._metrics.on_submit(request)

    async def engine_answers(self) -> None:
        """Return when the engine has come between two steps; an engine that hangs never does."""
        pin_id = self.unique_id("alive")
        try:
            await asyncio.wrap_future(self._engine.pin(pin_id, ()))
        finally:
            self._engine.release(pin_id)

    def end_all(self, error: PagemeshError) -> None:
        """Tell whoever waits for a request that it failed: the engine is gone and will not."""
        outputs = [
            RequestOutput(request_id, finish_reason=FinishReason.ERROR, error=error)
            for request_id in self._listeners
        ]
        self._dispatch(StepOutput(outputs=outputs, load=self._load))

    def forget(self, request_id: str) -> None:
        """Route no further events of a request."""
        self._listeners.pop(request_id, None)

    def _on_step(self, step: StepOutput) -> None:
        if threading.get_ident() == self._loop_thread:
            self._dispatch(step)
        else:
            self._loop.call_soon_threadsafe(self._dispatch, step)

    def _dispatch(self, step: StepOutput) -> None:
        self._load = step.load
        self._metrics.on_step(step)
        for listener in self._step_listeners:
            listener(step)
        for grant in step.grants:
            if not self._tell(grant):
                self._engine.finish_import(grant.request_id, grant.num_held_tokens)
        for export in step.exports:
            self._tell(export)
        for progress in step.progress:
            self._tell(progress)
        for output in step.outputs:
            self._tell(output)
            if output.finish_reason is not None:
                self.forget(output.request_id)

    def _tell(self, event: RequestEvent) -> bool:
        """Whether somebody took it."""
        listener = self._listeners.get(event.request_id)
        if listener is None:
            return False
        try:
            listener(event)
        except Exception:
            # One request's fault must not keep the step from the others.
            log.exception(
                "request listener failed",
                request_id=event.request_id.rpartition("#")[0],
                engine_request_id=event.request_id,
            )
            return False
        return True
